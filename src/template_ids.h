/*
 * template_ids.h
 *		Ids that surely no template has.
 */
#ifndef COUPON_TEMPLATE_IDS_H
#define COUPON_TEMPLATE_IDS_H

extern Size TemplateIdsShmemSize(void);
extern void TemplateIdsShmemInit(void);
extern void TemplateIdsAdd(Oid relation, int64 template_id);
extern bool TemplateIdsLack(int64 template_id);
extern void TemplateIdsForgetDatabase(Oid database);
extern void TemplateIdsLearn(void);

#endif							/* COUPON_TEMPLATE_IDS_H */
