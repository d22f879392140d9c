# All SQL that C code sends: every name, operator and literal says what it is, so
# that nobody's function, operator, type or table can take the place of the one that
# is meant.  And all SQL that is installed: it runs and is parsed with a search path
# of pg_catalog alone, so that only names of ours are to be qualified.

use strict;
use warnings FATAL => 'all';
use PostgreSQL::Test::Utils;
use Test::More;

# Words that may stand before a parenthesis without being a function of a schema.
my %grammar = map { $_ => 1 } qw(
  ALL AND ANY ARRAY AS BY CAST COALESCE CONFLICT DISTINCT EXCEPT EXISTS EXTRACT FILTER
  FROM GREATEST GROUP HAVING INSERT INTO JOIN KEY LATERAL LEAST LIMIT MATERIALIZED NOT ON OPERATOR OR
  OVER PARTITION RETURNING ROW SELECT SET SOME TABLE THEN UNION UNIQUE UPDATE VALUES WHEN WHERE WITH);
# Types that the grammar itself takes from pg_catalog.
my %types = map { $_ => 1 } qw(BIGINT BOOLEAN INT INTEGER INTERVAL NUMERIC REAL SMALLINT);
my %tables_after = map { $_ => 1 } qw(FROM JOIN INTO UPDATE TABLE);

# A token is [kind, text]: word, quoted, string, number, operator, or a mark.
sub tokens
{
	my ($sql) = @_;
	my @tokens;
	while ($sql =~ /\G(?:\s+|--[^\n]*\n|\/\*.*?\*\/)*(?:
		(?<string>'(?:[^']|'')*') | (?<quoted>"[^"]*") | (?<param>\$\d+) | (?<slot>%(?:\d+\$)?[sd]|@\w+@) |
		(?<number>\d+(?:\.\d+)?) | (?<word>[A-Za-z_]\w*(?:%(?:\d+\$)?[sd])?) | (?<cast>::) | (?<mark>[().,;:\[\]]) |
		(?<operator>[-+*\/<>=~!\@\#%^&|`?]+))/gcxs)
	{
		my ($kind) = keys %+;
		push @tokens, [ $kind, $+{$kind} ];
	}
	return @tokens;
}

# What is wrong with a statement, as a list of remarks.
sub remarks
{
	my ($sql) = @_;
	my @t = tokens($sql);
	my @remarks;
	my $utility = $sql =~ /^\s*(?:CREATE|COMMENT|GRANT|DROP|REVOKE)\b/;
	my (%cte, @clause);
	for my $i (0 .. $#t)
	{
		$cte{ $t[$i][1] } = 1 if $t[$i][0] eq 'word' && ($t[ $i + 1 ] // [ '', '' ])->[1] eq 'AS'
		  && ($t[ $i + 2 ] // [ '', '' ])->[1] =~ /^(?:\(|MATERIALIZED|NOT)$/;
		$cte{ $t[$i][1] } = 1 if $i > 0 && $t[ $i - 1 ][1] =~ /^(?:WITH|RECURSIVE)$/;	# name (columns) AS
	}
	push @clause, '';
	for my $i (0 .. $#t)
	{
		my ($kind, $text) = @{ $t[$i] };
		my $before = $i > 0 ? $t[ $i - 1 ][1] : '';
		my $after = $i < $#t ? $t[ $i + 1 ][1] : '';
		my $word = uc $text;
		my $here = join ' ', map { $_->[1] } @t[ ($i > 3 ? $i - 3 : 0) .. ($i + 3 > $#t ? $#t : $i + 3) ];
		my $say = sub { push @remarks, "$_[0]: … $here …"; };

		push @clause, '' if $text eq '(' || $text eq '[';
		pop @clause if $text eq ')' || $text eq ']';
		$clause[-1] = $word if $kind eq 'word' && $word =~ /^(?:SELECT|FROM|WHERE|SET|GROUP|ORDER|VALUES|RETURNING|ON|LIMIT|JOIN|USING|FOR)$/;

		if ($kind eq 'operator')
		{
			next if $before eq '.' && $i > 2 && $t[ $i - 3 ][1] eq '(' && uc $t[ $i - 4 ][1] eq 'OPERATOR';
			next if $text eq '*' && $before =~ /^(?:\(|,|\.|SELECT|RETURNING)$/;
			next if $text eq '=>';
			next if $text eq '=' && $clause[-1] eq 'SET';
			next if $text eq '-' && $after =~ /^\d/ && $before =~ /^(?:\(|,|SELECT)$/;
			next if $utility && $text eq '=';
			$say->("operator $text");
		}
		elsif ($kind eq 'word')
		{
			$say->("$word is a hidden operator")
			  if $word =~ /^(?:BETWEEN|LIKE|ILIKE|NULLIF)$/ || $word eq 'IN' && $after eq '(';
			$say->('DISTINCT FROM is a hidden operator') if $word eq 'DISTINCT' && uc $after eq 'FROM';
			$say->('CASE of a value') if $word eq 'CASE' && uc $after ne 'WHEN';
			$say->('JOIN USING') if $word eq 'USING' && $after eq '(';
			if ($after eq '(' && $before ne '.' && !$grammar{$word} && uc $before ne 'AS' && !$utility)
			{
				my $several = $word eq 'UNNEST' && join(' ', map { $_->[1] } @t[ $i + 1 .. $#t ]) =~ /^\([^()]*,/;
				$say->("function $text") if !$several;
			}
		}
		elsif ($kind eq 'string')
		{
			$say->("literal $text") if $after ne '::' && !$utility;
		}
		elsif ($kind eq 'cast')
		{
			my $qualified = ($t[ $i + 2 ] // [ '', '' ])->[1] eq '.';
			$say->("type $after") if !$qualified && !$types{ uc $after };
		}
		# A table, first or later in a list.
		my $lists = $clause[-1] eq 'FROM' && $text eq ',';
		if ((($kind eq 'word' && $tables_after{$word}) || $lists) && !$utility
			&& !($word eq 'UPDATE' && $before =~ /^(?:DO|FOR|KEY)$/i) && !($word eq 'FROM' && (uc $before eq 'DISTINCT' || uc $before eq 'EPOCH')))
		{
			my ($next, $then) = ($t[ $i + 1 ] // [ '', '' ], $t[ $i + 2 ] // [ '', '' ]);
			$say->("table $next->[1]")
			  if $next->[0] =~ /^(?:word|quoted)$/ && $then->[1] ne '.' && !$cte{ $next->[1] }
			  && uc($next->[1]) !~ /^(?:LATERAL|ONLY|UNNEST|SKIP)$/;
		}
	}
	return @remarks;
}

# The statements in a file of C: string literals that begin like one.
sub statements_of_c
{
	my ($path) = @_;
	my $source = slurp_file($path);
	$source =~ s{/\*.*?\*/}{}gs;
	my $literal = qr/"(?:[^"\\]|\\.)*"/;
	my $headers = join '', map { slurp_file($_) } glob 'src/*.h src/*/*.h';
	for my $text ($headers, my $copy = $source)
	{
		while ($text =~ /^#define (\w+)[\s\\]+($literal(?:[ \t]*\\?\s*$literal)*)/gm)
		{
			my ($name, $value) = ($1, $2);
			$value =~ s/\\\n//g;
			$source =~ s/(?<!define )\b$name\b/$value/g;
		}
	}
	my @statements;
	while ($source =~ /(\w*\(?)\s*((?:$literal\s*(?:INT64_FORMAT\s*)?)+)/g)
	{
		my ($before, $sql) = ($1, $2);
		next if $before =~ /^(?:err|elog)/;
		$sql =~ s/INT64_FORMAT/"%d"/g;
		$sql = join '', map { s/^"//r =~ s/"$//r } $sql =~ /$literal/g;
		$sql =~ s/%%/%/g;
		push @statements, $sql
		  if $sql !~ /[^\0-\x7f]/ && $sql =~ /^\s*(?:SELECT|INSERT INTO|UPDATE|DELETE FROM|WITH|LOCK TABLE|CREATE|DROP|GRANT|REVOKE|COMMENT ON|MERGE|TRUNCATE|ALTER)\b/;
	}
	return @statements;
}

# The judge himself.
for my $bad ("SELECT a = 1 FROM %1\$s.t", "SELECT now()", "SELECT 1 FROM t", "SELECT %1\$s.f('x')", "SELECT a::text FROM %1\$s.t",
	"SELECT 1 FROM %1\$s.t WHERE a IN (1, 2)", "DELETE FROM t", "UPDATE %1\$s.t SET a = b + 1", "SELECT 1 FROM %1\$s.a, b",
	"SELECT 1 FROM %1\$s.a JOIN %1\$s.b USING (c)", "SELECT CASE a WHEN 1 THEN 2 END FROM %1\$s.t", "INSERT INTO t (a) VALUES (1)",
	"SELECT a IS DISTINCT FROM 1 FROM %1\$s.t", "SELECT unnest(\$1)")
{
	isnt(join('', remarks($bad)), '', "refused: $bad");
}
for my $good ("SELECT a OPERATOR(pg_catalog.=) 1, pg_catalog.count(*), -1 FROM %1\$s.t AS x (a) WHERE x.b OPERATOR(pg_catalog.=) ANY (\$1)",
	"WITH c AS (SELECT 1) SELECT COALESCE(1, 2)::bigint, 'x'::pg_catalog.text FROM c", "UPDATE %1\$s.t SET a = 1 WHERE true",
	"SELECT c.a FROM %1\$s.t AS c LEFT JOIN %1\$s.u AS u ON true FOR NO KEY UPDATE OF c", "SELECT a, b FROM unnest(\$1, \$2) AS x (a, b)", "INSERT INTO %1\$s.t (a) VALUES (\$1) ON CONFLICT (a) DO UPDATE SET a = excluded.a")
{
	is(join('', remarks($good)), '', "accepted: $good");
}

my $n = 0;
for my $file (sort glob 'src/*.c src/*/*.c bgworker/*.c bgworker/*/*.c')
{
	for my $sql (statements_of_c($file))
	{
		$n++;
		my $start = substr($sql, 0, 60);
		is(join("\n", remarks($sql)), '', "$file: $start");
	}
}
cmp_ok($n, '>', 80, "$n statements in C were read");

# What is installed: the script pins its path first of all, and so does each function
# with a body that is parsed when it is called.  What is left are names of ours, and
# what is given to our functions.
my %script = map { $_ => slurp_file($_) } sort glob 'sql/install/*.sql';
like($script{'sql/install/guard.sql'} =~ s{/\*.*?\*/|^--[^\n]*|^\\[^\n]*}{}gmsr, qr/^\s*SET LOCAL search_path = pg_catalog, pg_temp;/, 'the script pins its path');
my %ours = map { $_ => 1 } map { /^CREATE (?:TABLE|VIEW|FUNCTION|PROCEDURE|TYPE|AGGREGATE) \@extschema\@\.(\w+)/gm } values %script;
cmp_ok(scalar keys %ours, '>', 100, scalar(keys %ours) . ' objects are installed');

# What is wrong with installed SQL: names of ours without their schema, arguments of
# ours without a type, functions without a path.
sub remarks_installed
{
	my ($sql) = @_;
	my @remarks;
	$sql =~ s/^\s*--[^\n]*$//gm;
	$sql =~ s/^COMMENT ON .*? IS\s+'(?:[^']|'')*';//gms;
	push @remarks, "not qualified: $1" while $sql =~ /^CREATE (?:TABLE|VIEW|FUNCTION|PROCEDURE|TYPE|AGGREGATE) (?!\@extschema\@\.)(\S+)/gm;
	my @bodies = $sql =~ /\$\$(.*?)\$\$/gs;
	$sql =~ s/\$\$.*?\$\$/body/gs;
	while ($sql =~ /^CREATE (?:FUNCTION|PROCEDURE) (\S+?)\(.*?;\s*$/gms)
	{
		my ($text, $name) = ($&, $1);
		push @remarks, "$name does not pin its path"
		  if $text =~ /LANGUAGE (?:sql|plpgsql)/ && $text !~ /BEGIN ATOMIC/ && $text !~ /SET search_path = pg_catalog, pg_temp/;
		push @remarks, "$name is SECURITY DEFINER" if $text =~ /SECURITY DEFINER/;
	}
	$sql = join "\n", map { s/'(?:[^']|'')*'/''/gr } $sql, @bodies;
	for my $name (keys %ours)
	{
		while ($sql =~ /(?:FROM|JOIN|INTO|UPDATE|SELECT|PERFORM|CALL|DEFAULT|,|\()\s+$name\b(?!\.)/g)
		{
			push @remarks, "not qualified: $&";
		}
		while ($sql =~ /\@extschema\@\.$name\((?!.*--)([^()]*)\)/g)
		{
			push @remarks, "not typed: $name($_)" for grep { /^\s*(?:''|NULL)\s*$/ } split /,/, $1;
		}
	}
	return @remarks;
}
# What C code calls as the owner, and what that calls: a function of a shop's that
# fires amid it may have set another search path, so that its body is read as SQL of C is.
my %as_owner = map { $_ => 1 } join('', map { slurp_file($_) } glob 'src/*.c src/*/*.c') =~ /%1\$s\.(coupon_\w+)\(/g;
my %body;
for my $sql (values %script)
{
	$body{$1} = $2 while $sql =~ /^CREATE FUNCTION \@extschema\@\.(\w+)\((?:(?!^CREATE ).)*?LANGUAGE plpgsql(?:(?!^CREATE ).)*?\$\$(.*?)\$\$/gms;
}
for (1 .. 3)
{
	$as_owner{$_} = 1 for map { $body{$_} ? $body{$_} =~ /(?:\@extschema\@|%s)\.(coupon_\w+)\(/g : () } keys %as_owner;
}
my @owned = sort grep { $body{$_} } keys %as_owner;
cmp_ok(scalar @owned, '>=', 4, "bodies that run as the owner: @owned");
for my $name (@owned)
{
	my $sql = $body{$name} =~ s/--[^\n]*//gr;
	$sql =~ s/:=/ SET /g;
	$sql =~ s/\b(?:EXECUTE)\s+pg_catalog\.format\('[^;]*;/;/g;	# its text is qualified by hand
	$sql =~ s/\b(?:ELSIF|IF|LOOP|RETURN|PERFORM|FOREACH|FOR|DECLARE|BEGIN|END)\b/;/g;
	is(join("\n", grep { !/^(?:table|type) / && !/\bNOT \(/ } map { remarks($_) } split /;/, $sql), '', "as the owner: $name");
}
for my $bad ("CREATE TABLE t (a int);", "CREATE FUNCTION \@extschema\@.f() RETURNS int\n    LANGUAGE sql AS 'SELECT 1';\n",
	"CREATE VIEW \@extschema\@.v AS SELECT * FROM coupon_task;", "CREATE VIEW \@extschema\@.v AS SELECT \@extschema\@.coupon_shop_allowed(NULL);")
{
	isnt(join('', remarks_installed($bad)), '', 'refused: ' . substr($bad, 0, 60) =~ s/\n/ /gr);
}
is(join("\n", remarks_installed($script{$_})), '', $_) for sort keys %script;
done_testing();
