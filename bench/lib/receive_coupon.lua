-- The reference for the claim in Redis: codes 0 ok, 1 not_found,
-- 2 out_of_stock, 3 ended, 4 over_limit, 5 not_started.
-- KEYS: template (hash), coupons per user (hash), claims (stream); ARGV: user.
local stock, limit, starts, ends =
    unpack(redis.call('HMGET', KEYS[1], 'stock', 'limit', 'receive_start', 'receive_end'))
if not stock then
    return 1
end
local now = tonumber(redis.call('TIME')[1])
if now < tonumber(starts) then
    return 5
end
if now >= tonumber(ends) then
    return 3
end
if tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or 0) >= tonumber(limit) then
    return 4
end
if tonumber(stock) <= 0 then
    return 2
end
redis.call('HINCRBY', KEYS[1], 'stock', -1)
local seq = redis.call('HINCRBY', KEYS[2], ARGV[1], 1)
redis.call('XADD', KEYS[3], '*', 'user', ARGV[1], 'seq', seq)
return 0
