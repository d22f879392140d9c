/*
 * adopt.h
 *		Coupons of another system, taken into the stock of their template.
 */
#ifndef COUPON_ADOPT_H
#define COUPON_ADOPT_H

extern bool AdoptIsRunning(void);

#endif							/* COUPON_ADOPT_H */
