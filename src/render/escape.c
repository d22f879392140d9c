/*
 * escape.c
 *		Values as JSON, forms and XML want them.
 *
 * Bytes are appended, nothing is formatted: see render/text.c.
 */
#include "postgres.h"

#include "render/request.h"
#include "render/text.h"

/* A string as it stands between quotes in JSON. */
static void
AppendJson(StringInfo out, const char *s)
{
	static const char hex[] = "0123456789abcdef";
	const char *run = s;

	for (;; s++)
	{
		unsigned char c = *s;

		if (likely(c >= 0x20 && c != '"' && c != '\\'))
			continue;
		appendBinaryStringInfo(out, run, s - run);
		run = s + 1;
		switch (c)
		{
			case '\0':
				return;
			case '"':
			case '\\':
				appendStringInfoChar(out, '\\');
				appendStringInfoChar(out, c);
				break;
			case '\n':
				appendBinaryStringInfo(out, "\\n", 2);
				break;
			default:
				appendBinaryStringInfo(out, "\\u00", 4);
				appendStringInfoChar(out, hex[c >> 4]);
				appendStringInfoChar(out, hex[c & 15]);
		}
	}
}

static void
AppendForm(StringInfo out, const char *s)
{
	static const char hex[] = "0123456789ABCDEF";

	for (; *s != '\0'; s++)
	{
		unsigned char c = *s;

		if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
			(c >= '0' && c <= '9') || strchr("-._~", c) != NULL)
		{
			appendStringInfoChar(out, c);
			continue;
		}
		appendStringInfoChar(out, '%');
		appendStringInfoChar(out, hex[c >> 4]);
		appendStringInfoChar(out, hex[c & 15]);
	}
}

/* Good for text and for attributes; what XML 1.0 cannot hold is left out. */
static void
AppendXml(StringInfo out, const char *s)
{
	for (; *s != '\0'; s++)
	{
		switch (*s)
		{
			case '&':
				appendStringInfoString(out, "&amp;");
				break;
			case '<':
				appendStringInfoString(out, "&lt;");
				break;
			case '>':
				appendStringInfoString(out, "&gt;");
				break;
			case '"':
				appendStringInfoString(out, "&quot;");
				break;
			case '\'':
				appendStringInfoString(out, "&apos;");
				break;
			default:
				if ((unsigned char) *s >= ' ' || *s == '\t' || *s == '\n' || *s == '\r')
					appendStringInfoChar(out, *s);
		}
	}
}

/*
 * RenderEscaped appends a value as it stands in a body_template: between quotes
 * in JSON, in a form, or in XML.
 */
void
RenderEscaped(StringInfo out, const char *s, RenderEscape escape)
{
	switch (escape)
	{
		case RENDER_RAW:
			appendStringInfoString(out, s);
			break;
		case RENDER_JSON:
			AppendJson(out, s);
			break;
		case RENDER_FORM:
			AppendForm(out, s);
			break;
		case RENDER_XML:
			AppendXml(out, s);
			break;
	}
}

/*
 * RenderJsonString appends a string of JSON, or null.
 */
void
RenderJsonString(StringInfo out, const char *s)
{
	if (s == NULL)
	{
		appendBinaryStringInfo(out, "null", 4);
		return;
	}
	appendStringInfoChar(out, '"');
	AppendJson(out, s);
	appendStringInfoChar(out, '"');
}

/*
 * RenderJsonId appends an id, as a string, since it may pass 2^53; 0 as null.
 */
void
RenderJsonId(StringInfo out, int64 id)
{
	if (id == 0)
	{
		appendBinaryStringInfo(out, "null", 4);
		return;
	}
	appendStringInfoChar(out, '"');
	RenderInteger(out, id);
	appendStringInfoChar(out, '"');
}
