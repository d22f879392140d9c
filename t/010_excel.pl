# docs/excel.md: user ids from an .xlsx into a stage, failures into an .xlsx.
# Ids have 19 digits here: as numbers they would lose the last ones.

use strict;
use warnings FATAL => 'all';
use lib 't/lib';
use CouponTest;
use IO::Uncompress::Unzip;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'ssconvert (package gnumeric) is not installed'
	unless grep { -x "$_/ssconvert" } split /:/, $ENV{PATH};

my $node = new_node('excel', "coupon.databases = ''");
my $dir = PostgreSQL::Test::Utils::tempdir();
# It wants to keep settings somewhere.
$ENV{HOME} = $dir;

my $task;

# The stage of a task: its name.
sub new_stage
{
	my $stage;
	($task, $stage) = split /\|/, $node->safe_psql('postgres', q{
		INSERT INTO coupon_template (id, name, discount_value, status) VALUES (1, 'excel', 1, 'published')
		ON CONFLICT DO NOTHING;
		SELECT * FROM coupon_task_create('excel', 1)});
	return $stage;
}

# Run it; a query for the lines that got no coupon: row_num, user_id, cause.
sub failures
{
	$node->safe_psql('postgres', "CALL coupon_task_run($task)");
	is($node->safe_psql('postgres', 'SELECT user_id FROM user_coupon ORDER BY user_id'),
		"9007199254740993\n1234567890123456788\n1234567890123456789", 'coupons for the ids of the sheet');
	return "SELECT row_num, user_id, cause FROM coupon_task_failure WHERE task_id = $task";
}

sub convert
{
	command_ok([ 'ssconvert', @_ ], "ssconvert $_[-1]");
	return;
}

sub to_csv
{
	my ($from, $to) = @_;
	convert('--export-type=Gnumeric_stf:stf_assistant', '--export-options=format=raw', $from, $to);
	return;
}

# The only sheet's XML, to see which cells are text.
sub sheet
{
	my ($path) = @_;
	my $zip = IO::Uncompress::Unzip->new($path, Name => 'xl/worksheets/sheet1.xml') or die;
	local $/;
	return <$zip>;
}

# An .xlsx as people make them: a header, ids as text, a mistake, an empty row,
# and what looks like a formula.
append_to_file("$dir/made.csv", "\xef\xbb\xbfuser_id\n'1234567890123456789\n'9007199254740993\nJane\n\n'=1+1\n'1234567890123456788\n");
convert("$dir/made.csv", "$dir/users.xlsx");
like(sheet("$dir/users.xlsx"), qr{<c r="A2"[^>]*t="(inlineStr|s)"}, 'ids are text cells');

# In.
to_csv("$dir/users.xlsx", "$dir/users.csv");
is(slurp_file("$dir/users.csv"), "user_id\n1234567890123456789\n9007199254740993\nJane\n\n\"=1+1\"\n1234567890123456788\n" =~ s/"//gr,
	'all digits are there, and the empty row');
my $stage = new_stage();
$node->safe_psql('postgres', "\\copy $stage (user_id) FROM '$dir/users.csv' CSV HEADER");
is($node->safe_psql('postgres', "SELECT count(*), count(*) FILTER (WHERE user_id::text IN ('1234567890123456789', '9007199254740993', '1234567890123456788')) FROM $stage"),
	'6|3', 'and in the stage');

# Out: the apostrophe makes a text cell of whatever it was.
my $failures = failures();
$node->safe_psql('postgres', "\\copy (SELECT row_num, '''' || user_id AS user_id, cause FROM ($failures) f ORDER BY row_num) TO '$dir/failures.csv' CSV HEADER");
convert("$dir/failures.csv", "$dir/failures.xlsx");
to_csv("$dir/failures.xlsx", "$dir/back.csv");
is(slurp_file("$dir/back.csv"), "row_num,user_id,cause\n4,Jane,invalid_user_id\n5,,invalid_user_id\n6,=1+1,invalid_user_id\n",
	'failures, with the numbers of rows in the sheet');
unlike(sheet("$dir/failures.xlsx"), qr/<f>/, 'a user id never becomes a formula');

# Ids of any length are text cells on the way out as well.
$node->safe_psql('postgres', "\\copy (SELECT '''' || user_id AS user_id FROM user_coupon) TO '$dir/ids.csv' CSV HEADER");
convert("$dir/ids.csv", "$dir/ids.xlsx");
is(() = sheet("$dir/ids.xlsx") =~ /<c r="A\d+"[^>]*t="(?:inlineStr|s)"/g, 4, 'ids go out as text cells');

# A CSV with a byte order mark, as Excel saves it: it is in the header line.
append_to_file("$dir/bom.csv", "\xef\xbb\xbfuser_id\r\n1234567890123456789\r\n");
$stage = new_stage();
$node->safe_psql('postgres', "\\copy $stage (user_id) FROM '$dir/bom.csv' CSV HEADER");
is($node->safe_psql('postgres', "SELECT user_id FROM $stage"), '1234567890123456789', 'a byte order mark does no harm');
$node->stop;
done_testing();
