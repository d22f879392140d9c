/*
 * installed.c
 *		Whether columns and CHECKs of our tables are those that they were installed
 *		with.
 *
 * Code that writes a table past the executor fills rows that satisfy the CHECKs
 * of the install script.  One that somebody has put in the place of ours, under
 * the same name perhaps, has to be evaluated.
 *
 * What is compared is the tree that PostgreSQL makes of the text in the install
 * script, here and now: types and operators of ours have other numbers in each
 * database.  That takes longer than a row takes to be written, so what was
 * found good, or not, is remembered as the string that the catalog has for it;
 * as a rule comparing these is all.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "nodes/nodes.h"
#include "parser/parse_coerce.h"
#include "parser/parse_collate.h"
#include "parser/parse_expr.h"
#include "parser/parse_relation.h"
#include "parser/parser.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "errors.h"
#include "installed.h"

#define MOST_CHECKS 3			/* of a table */

/* Tables that are written past the executor, as sql/install/ has them. */
static struct
{
	const char *table;
	const char *checks[MOST_CHECKS];
	char	   *good[MOST_CHECKS];	/* the same, as stored in the catalog */
	char	   *foreign;		/* the last one that is none of them */
}			tables[] =
{
	{"user_coupon", {
		"id > 0 AND user_id > 0 AND receive_seq > 0"
		" AND status BETWEEN 0 AND 4"
		" AND source IN ('center', 'platform', 'shop', 'registration', 'code', 'redis')"
		" AND use_end > use_start"}},
	{"coupon_notification", {
		"channel IN ('sms', 'email', 'app', 'ch3', 'ch4')",
		"kind IN ('reminder', 'coupon', 'test')",
		"cardinality(user_ids) > 0 AND array_position(user_ids, NULL) IS NULL"}},
	{"coupon_notification_history", {
		"state IN ('delivered', 'dead', 'missed')"}},
	{"coupon_remind", {
		"user_id > 0 AND bitmap <> '{}' AND fired <@ bitmap"}},
};

/* The tree of a CHECK, as CREATE TABLE makes it. */
static Node *
Parse(Relation rel, const char *text)
{
	ParseState *state = make_parsestate(NULL);
	List	   *raw = raw_parser(text, RAW_PARSE_PLPGSQL_EXPR);
	SelectStmt *select = castNode(SelectStmt, linitial_node(RawStmt, raw)->stmt);
	ResTarget  *target = linitial_node(ResTarget, select->targetList);
	Node	   *tree;

	addNSItemToQuery(state,
					 addRangeTableEntryForRelation(state, rel, AccessShareLock, NULL,
												   false, true),
					 true, true, true);
	tree = transformExpr(state, target->val, EXPR_KIND_CHECK_CONSTRAINT);
	tree = coerce_to_boolean(state, tree, "CHECK");
	assign_expr_collations(state, tree);
	free_parsestate(state);
	return tree;
}

/* Parse, with our own types and operators in sight, and no stranger's. */
static Node *
ParseInSchema(Relation rel, const char *text)
{
	const char *schema = get_namespace_name(RelationGetNamespace(rel));
	int			level = NewGUCNestLevel();
	Node	   *tree;

	(void) set_config_option("search_path",
							 psprintf("pg_catalog, %s, pg_temp", quote_identifier(schema)),
							 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	tree = Parse(rel, text);
	AtEOXact_GUC(true, level);
	return tree;
}

static void
Remember(char **place, const char *stored)
{
	static MemoryContext context = NULL;

	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "coupon installed checks",
										ALLOCSET_SMALL_SIZES);
	if (*place != NULL)
		pfree(*place);
	*place = NULL;
	*place = MemoryContextStrdup(context, stored);
}

/* Whether a CHECK, as the catalog has it, is one of a table's own. */
static bool
IsInstalled(Relation rel, int table, const char *stored)
{
	Node	   *tree;

	for (int i = 0; i < MOST_CHECKS; i++)
	{
		if (tables[table].good[i] != NULL && strcmp(tables[table].good[i], stored) == 0)
			return true;
	}
	if (tables[table].foreign != NULL && strcmp(tables[table].foreign, stored) == 0)
		return false;
	tree = stringToNode(stored);
	for (int i = 0; i < MOST_CHECKS && tables[table].checks[i] != NULL; i++)
	{
		if (equal(tree, ParseInSchema(rel, tables[table].checks[i])))
		{
			Remember(&tables[table].good[i], stored);
			return true;
		}
	}
	Remember(&tables[table].foreign, stored);
	return false;
}

/*
 * InstalledChecksOnly tells whether a relation, the table of that name or a
 * partition of it, locked and with its columns as installed, has no CHECK but
 * the table's own.
 */
bool
InstalledChecksOnly(Relation rel, const char *table)
{
	TupleConstr *constr = RelationGetDescr(rel)->constr;
	int			number = 0;

	if (constr == NULL || constr->num_check == 0)
		return true;
	while (number < lengthof(tables) && strcmp(tables[number].table, table) != 0)
		number++;
	if (number == lengthof(tables))
		return false;			/* somebody's, that inherits from ours */
	for (int i = 0; i < constr->num_check; i++)
	{
		if (!IsInstalled(rel, number, constr->check[i].ccbin))
			return false;
	}
	return true;
}

/* The columns of user_coupon as they are installed, in order. */
static const struct
{
	const char *name;
	Oid			type;
	bool		not_null;
	bool		given;			/* by insert.c, so that a default is not used */
}			installed_columns[COUPON_COLUMNS] =
{
	{"id", INT8OID, true, true},
	{"user_id", INT8OID, true, true},
	{"template_id", INT8OID, true, true},
	{"received_at", TIMESTAMPTZOID, true, true},
	{"use_start", TIMESTAMPTZOID, true, true},
	{"use_end", TIMESTAMPTZOID, true, true},
	{"receive_seq", INT4OID, true, true},
	{"holder", INT4OID, false, true},
	{"status", INT2OID, true, true},
	{"source", TEXTOID, true, true},
	{"order_id", INT8OID, false, false},
	{"locked_until", TIMESTAMPTZOID, false, false},
	{"used_at", TIMESTAMPTZOID, false, false},
	{"discount", NUMERICOID, false, false},
	{"request_id", TEXTOID, false, true},
};

/*
 * InstalledColumnsOnly tells whether the columns of user_coupon, or of a
 * partition, are those that it was installed with, and no others.
 */
bool
InstalledColumnsOnly(TupleDesc desc)
{
	if (desc->natts != COUPON_COLUMNS)
		return false;
	for (int i = 0; i < COUPON_COLUMNS; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (att->attisdropped ||
			strcmp(NameStr(att->attname), installed_columns[i].name) != 0 ||
			att->atttypid != installed_columns[i].type ||
			att->attnotnull != installed_columns[i].not_null ||
			(att->atthasdef && !installed_columns[i].given))
			return false;
	}
	return true;
}

/*
 * InstalledFindColumns tells where user_coupon's columns are in a partition, by
 * name, as an array indexed by CouponColumn.  Raises VC009 where one is missing
 * or of another type.
 */
void
InstalledFindColumns(Relation rel, AttrNumber *column)
{
	TupleDesc	desc = RelationGetDescr(rel);

	for (int c = COUPON_ID; c <= COUPON_COLUMNS; c++)
	{
		column[c] = InvalidAttrNumber;
		for (int i = 0; i < desc->natts; i++)
		{
			Form_pg_attribute att = TupleDescAttr(desc, i);

			if (!att->attisdropped && att->atttypid == installed_columns[c - 1].type &&
				strcmp(NameStr(att->attname), installed_columns[c - 1].name) == 0)
				column[c] = i + 1;
		}
		if (column[c] == InvalidAttrNumber)
			ereport(ERROR,
					(errcode(ERRCODE_COUPON_NOT_INSTALLED),
					 errmsg("table \"%s\" lacks its column \"%s\" of type %s",
							RelationGetRelationName(rel), installed_columns[c - 1].name,
							format_type_be(installed_columns[c - 1].type)),
					 errhint("Rename it back, or restore it.")));
	}
}
