\set user random(1, 1000000000000000)
INSERT INTO TABLE_NAME (user_id, template_id, use_end, source)
VALUES (:user, 1, statement_timestamp() + '30 days', 'center');
