/*
 * installed.h
 *		Whether the CHECKs of our tables are those that they were installed with.
 */
#ifndef COUPON_INSTALLED_H
#define COUPON_INSTALLED_H

#include "utils/relcache.h"

extern bool InstalledChecksOnly(Relation rel, const char *table);

#endif							/* COUPON_INSTALLED_H */
