/*
 * deliver.h
 *		Sends what waits in the outbox.
 */
#ifndef COUPON_DELIVER_H
#define COUPON_DELIVER_H

extern void DeliverInit(bool mail);
extern long DeliverJob(bool woken);
extern long DeliverAnswers(bool woken);
extern bool DeliverIsIdle(void);

#endif							/* COUPON_DELIVER_H */
