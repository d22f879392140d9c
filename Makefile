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
	src/address.o \
	src/announce.o \
	src/args.o \
	src/array.o \
	bgworker/deliver.o \
	bgworker/duty.o \
	bgworker/lane.o \
	bgworker/launcher.o \
	bgworker/leave.o \
	bgworker/retry.o \
	bgworker/status.o \
	bgworker/transfer.o \
	bgworker/transfer_answer.o \
	bgworker/transfer_request.o \
	bgworker/transfer_socket.o \
	bgworker/worker.o \
	src/cache.o \
	src/caller.o \
	src/catalog.o \
	src/channel.o \
	src/channel_check.o \
	src/channel_names.o \
	src/claim.o \
	src/claimants.o \
	src/count_snapshot.o \
	src/coupon.o \
	src/distribute.o \
	src/dropped.o \
	src/fold.o \
	src/guard.o \
	src/guc.o \
	src/holdings.o \
	src/id.o \
	src/insert.o \
	src/installed.o \
	src/journal.o \
	src/lease.o \
	src/lease_channel.o \
	src/lease_record.o \
	src/lines.o \
	src/outbox.o \
	src/outcome.o \
	src/pace.o \
	src/preview.o \
	src/procedure.o \
	src/put_off.o \
	src/query.o \
	src/receive.o \
	src/remind.o \
	src/remind_bitmap.o \
	src/remind_fire.o \
	src/remind_rows.o \
	src/remind_tick.o \
	src/render.o \
	src/render_channel.o \
	src/render_escape.o \
	src/render_hmac.o \
	src/render_mail.o \
	src/render_text.o \
	src/role.o \
	src/row.o \
	src/row_writer.o \
	src/rows.o \
	src/section.o \
	src/stage.o \
	src/stat.o \
	src/stock.o \
	src/subxact.o \
	src/task.o \
	src/task_run.o \
	src/template.o \
	src/template_load.o \
	src/tidy.o \
	src/verify.o \
	src/wake.o \
	src/wallet.o

# The install script's parts, in the order in which they are joined.
PARTS = guard id outcome channel_names remind_bitmap role template stock claim wallet outbox channel remind task stat tidy cron privileges

DATA_built = coupon--$(EXTVERSION).sql

# Tests, by name, so that none can be forgotten; .ci/check reads these lists.
# "make installcheck" runs the first two against a running server that preloads the
# library.  The last one has a name that PGXS does not know: those files start servers
# of their own, and run in "make check" alone.
REGRESS = settings id outcome remind_bitmap template claim bad_input stock wallet channel \
	remind role stat task tidy tidy_task
ISOLATION = claim_race claim_levels stock_lower template_change fold_race ddl_race \
	task_race remind_race tidy_race
TAP_FILES = 001_crash 002_stress 003_gate 004_standby 005_databases 006_cache \
	007_replication 008_worker 009_cron 010_excel 011_task 012_claimants \
	013_holdings 014_tidy 015_transfer 017_remind 018_deliver 019_mail \
	020_deliver_crash 021_poisoned 022_flushed 023_clock 024_random 025_names \
	026_catalog 027_rights 028_readme 029_ddl
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
$(OBJS): $(wildcard $(srcdir)/src/*.h $(srcdir)/bgworker/*.h)

# Nor does it make folders for them in a VPATH build.
ifdef VPATH
$(shell mkdir -p $(sort $(dir $(OBJS))))
endif

# For scripts: the value of a variable.
print-%:
	@echo $($*)

endif
