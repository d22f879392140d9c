# coupon: a coupon and flash-sale engine for PostgreSQL.
#
#   make          builds the extension          make install   installs it
#   make demo     sets everything up and runs a flash sale
#   make check    sets everything up and runs all tests
#   make bench    prints the table of figures in README.md

# These four set up their own tools, so that pg_config need not exist yet.
ifneq ($(filter check demo demo-remove bench,$(MAKECMDGOALS)),)

.PHONY: check demo demo-remove bench
check:
	@.ci/check
demo:
	@bench/demo
demo-remove:
	@bench/demo --remove
bench:
	@pg_config=$$(.ci/setup bench | tail -n 1) && .ci/build "$$pg_config" && \
		PG_CONFIG="$$pg_config" bench/run

else

EXTENSION = coupon
EXTVERSION = 1.0
MODULE_big = coupon

OBJS = \
	bgworker/base/process.o \
	bgworker/base/status.o \
	bgworker/curl/answer.o \
	bgworker/curl/request.o \
	bgworker/curl/mail_process.o \
	bgworker/curl/socket.o \
	bgworker/curl/transfer.o \
	bgworker/delivery/channel_window.o \
	bgworker/delivery/decide.o \
	bgworker/delivery/deliver.o \
	bgworker/delivery/retry.o \
	bgworker/job.o \
	bgworker/launcher.o \
	bgworker/worker.o \
	bgworker/yield_database.o \
	src/admin/drop_database.o \
	src/admin/maintenance.o \
	src/admin/stat.o \
	src/admin/verify.o \
	src/base/args.o \
	src/base/array.o \
	src/base/caller.o \
	src/base/catalog.o \
	src/base/channel_names.o \
	src/base/commit_wakeup.o \
	src/base/count_snapshot.o \
	src/base/attached.o \
	src/base/guc.o \
	src/base/id.o \
	src/base/installed.o \
	src/base/ipaddr.o \
	src/base/outcome.o \
	src/base/owner_query.o \
	src/base/procedure.o \
	src/base/result_row.o \
	src/base/row_writer.o \
	src/base/secret.o \
	src/base/shop_role.o \
	src/base/subxact.o \
	src/base/throttle.o \
	src/base/worker_slots.o \
	src/claim/claim.o \
	src/claim/receive.o \
	src/claim/wallet.o \
	src/coupon.o \
	src/notification/answer_body.o \
	src/notification/channel.o \
	src/notification/channel_check.o \
	src/notification/lease.o \
	src/notification/channel_load.o \
	src/notification/lease_complete.o \
	src/notification/outbox.o \
	src/notification/preview.o \
	src/order/bill.o \
	src/order/coupon_row.o \
	src/order/discount.o \
	src/order/order.o \
	src/order/order_history.o \
	src/order/quote.o \
	src/remind/bitmap.o \
	src/remind/due.o \
	src/remind/early.o \
	src/remind/fire.o \
	src/remind/remind.o \
	src/remind/tick.o \
	src/remind/turns.o \
	src/render/channel.o \
	src/render/escape.o \
	src/render/hmac.o \
	src/render/mail.o \
	src/render/request.o \
	src/render/text.o \
	src/stock/cache.o \
	src/stock/xact_changes.o \
	src/stock/stock.o \
	src/store/event.o \
	src/store/user_filter.o \
	src/store/limit_cache.o \
	src/store/insert.o \
	src/store/rows.o \
	src/task/check.o \
	src/task/deferred.o \
	src/task/due.o \
	src/task/input_rows.o \
	src/task/rest.o \
	src/task/runner.o \
	src/task/section.o \
	src/task/stage.o \
	src/task/task.o \
	src/task/task_batch.o \
	src/task/task_verbs.o \
	src/template/adopt.o \
	src/template/coupon_trigger.o \
	src/template/fold.o \
	src/template/template_trigger.o \
	src/template/load.o \
	src/template/template.o \
	src/template/template_verbs.o \
	src/template/trigger.o

# The install script's parts, in the order in which they are joined.
PARTS = guard id outcome channel_names remind_bitmap role template stock claim event wallet order secret outbox channel remind task stat maintenance cron privileges

DATA_built = coupon--$(EXTVERSION).sql

# Tests, by name, so that none can be forgotten; .ci/check reads these lists.
# "make installcheck" runs the first two against a running server that preloads the
# library.  The last one has a name that PGXS does not know: those files start servers
# of their own, and run in "make check" alone.
REGRESS = settings id outcome remind_bitmap template claim bad_input stock wallet order channel \
	remind role stat task campaign maintenance maintenance_task
ISOLATION = claim_race claim_levels claim_new_user stock_lower template_change fold_race ddl_race order_race \
	task_race remind_race maintenance_race
TAP_FILES = 001_crash 002_stress 003_gate 004_standby 005_databases 006_cache \
	007_replication 008_worker 009_cron 010_excel 011_task 012_user_filter \
	013_limit_cache 014_maintenance 015_transfer 017_remind 018_deliver 019_mail \
	020_deliver_crash 021_poisoned 022_flushed 023_clock 024_random 025_names \
	026_catalog 027_rights 028_readme 029_ddl 030_descriptors 031_wraparound 032_attached 033_turns 034_holders 035_in_time \
	036_restore 037_answer 038_quiet 039_order
REGRESS_OPTS = --load-extension=coupon
ISOLATION_OPTS = --load-extension=coupon

EXTRA_CLEAN = coupon--$(EXTVERSION).sql tmp_check output_iso log

# As pgcrypto does: OpenSSL where the server has it.
SHLIB_LINK += -lcurl $(filter -lcrypto, $(LIBS))

PG_CPPFLAGS = -I$(srcdir)/src -I$(srcdir) -DCOUPON_VERSION='"$(EXTVERSION)"'
PG_CFLAGS = -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare \
	-Wno-missing-field-initializers -Wno-declaration-after-statement

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
ifneq ($(PGXS),)
include $(PGXS)
endif

coupon--$(EXTVERSION).sql: $(PARTS:%=sql/install/%.sql)
	cat $^ > $@

# PGXS does not know which objects include which headers.
$(OBJS): $(wildcard $(srcdir)/src/*/*.h $(srcdir)/bgworker/*.h $(srcdir)/bgworker/*/*.h)

# Nor does it make folders for them in a VPATH build.
ifdef VPATH
$(shell mkdir -p $(sort $(dir $(OBJS))))
endif

# For scripts: the value of a variable.
print-%:
	@echo $($*)

endif
