/*
 * text.h
 *		Pieces of which bodies are made; shared by the rooms of rendering.
 */
#ifndef COUPON_TEXT_H
#define COUPON_TEXT_H

#include "render/request.h"

/* render/escape.c */
extern void RenderEscaped(StringInfo out, const char *s, RenderEscape escape);
extern void RenderJsonString(StringInfo out, const char *s);
extern void RenderJsonId(StringInfo out, int64 id);

/* render/text.c */
extern void RenderInteger(StringInfo out, int64 value);
extern void RenderUtc(StringInfo out, TimestampTz at);
extern void RenderRecipients(StringInfo out, const RenderNotification *notification);
extern bool RenderHasStart(const RenderEvent *event);
extern bool RenderTextsAreShared(const RenderEvent *event);
extern const char *RenderEventType(const RenderEvent *event);
extern void RenderTemplate(const RenderNotification *notification, const RenderChannel *channel,
						   const char *subject, const char *body, StringInfo out);

#endif							/* COUPON_TEXT_H */
