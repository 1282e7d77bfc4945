/* Time on the simulated GPU: shares, their cost, freezing. The clock is manual, so every number is exact. */
#include "manager_bed.h"
#include "tap.h"

#define SWITCH_NS 215000

struct tenant {
    struct manager_file *file;
    uint32_t client;
    unsigned groups;
};

static struct tenant arrive (unsigned groups, uint64_t microseconds)
{
    struct tenant tenant = { .file = manager_open (bed, MANAGER_CONTROL, 0), .groups = groups };
    uint32_t group_params[5] = { 0, 0, 0, 1, 0 };
    static uint8_t channel_params[368];

    tenant.client = bed_client (tenant.file, 0);
    for (uint32_t i = 0; i < groups; i++) {
        bed_alloc (tenant.file, tenant.client, DEVICE, 0x100 + i, 0xA06C, group_params);
        bed_alloc (tenant.file, tenant.client, 0x100 + i, 0x200 + i, 0xC86F, channel_params);
        if (microseconds != 0)
            bed_control (tenant.file, tenant.client, 0x100 + i, 0xA06C0103, &microseconds, 8);
    }
    return tenant;
}

static uint32_t give (const struct tenant *tenant, unsigned group, uint64_t nanoseconds, uint64_t count)
{
    struct sim_submit call = { .client = tenant->client, .channel = 0x200 + group, .nanoseconds = nanoseconds, .count = count };

    return bed_ioctl (tenant->file, SIM_SUBMIT, &call) == 0 ? call.status : 0xfffff;
}

static struct sim_progress look (const struct tenant *tenant, unsigned group)
{
    struct sim_progress call = { .client = tenant->client, .channel = 0x200 + group };

    bed_ioctl (tenant->file, SIM_PROGRESS, &call);
    return call;
}

/* Of all groups. */
static uint64_t busy (const struct tenant *tenant)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < tenant->groups; i++)
        sum += look (tenant, i).busy_ns;
    return sum;
}

static uint32_t freeze (const struct tenant *tenant, bool frozen, uint32_t client)
{
    static uint8_t params[536];
    uint32_t count = tenant->groups;

    memset (params, 0, sizeof (params));
    params[0] = frozen;
    memcpy (params + 4, &count, 4);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t channel = 0x200 + i;
        memcpy (params + 24 + 4 * i, &client, 4);
        memcpy (params + 280 + 4 * i, &channel, 4);
    }
    return bed_control (tenant->file, tenant->client, SUBDEVICE, 0x2080110B, params, sizeof (params));
}

static void advance (uint64_t nanoseconds) { manager_clock (bed, SIM_CLOCK_ADVANCE, nanoseconds); }

static bool near (double value, double wanted, double off) { return value > wanted - off && value < wanted + off; }

static void leave (struct tenant *tenant) { manager_release (tenant->file); }

static void alone (void)
{
    struct tenant one = arrive (1, 2048);

    give (&one, 0, 3 * MILLISECOND, 10);
    advance (SWITCH_NS + 10 * MILLISECOND);
    tap_ok (look (&one, 0).finished == 3 && busy (&one) == 10 * MILLISECOND,
            "alone, a group runs on and never switches (after its context was loaded once)");
    advance (100 * MILLISECOND);
    tap_ok (look (&one, 0).finished == 10 && busy (&one) == 30 * MILLISECOND, "and stops when nothing is left");
    give (&one, 0, MILLISECOND, 1);
    advance (MILLISECOND);
    tap_ok (look (&one, 0).finished == 11, "its context is still there for the next piece");
    leave (&one);
}

static void shares (void)
{
    struct tenant first = arrive (1, 4000), second = arrive (1, 2000);

    give (&first, 0, MILLISECOND, 1000000);
    give (&second, 0, MILLISECOND, 1000000);
    advance (10000 * MILLISECOND);
    double ratio = (double) busy (&first) / (double) busy (&second);
    double efficiency = (double) (busy (&first) + busy (&second)) / 1e10;
    tap_ok (near (ratio, 2, 0.01), "slices of 2 to 1 give time of 2 to 1");
    tap_ok (near (efficiency, 6.0 / 6.43, 0.002), "each slice costs a switch of 215 us more");
    leave (&first);
    leave (&second);
    first = arrive (1, 0);
    second = arrive (1, 0);
    uint64_t slice = 0;
    tap_ok (bed_control (first.file, first.client, 0x100, 0xA06C0104, &slice, 8) == 0 && slice == 1024,
            "a group's own slice is 1024 us");
    give (&first, 0, MILLISECOND, 1000000);
    give (&second, 0, 50 * MILLISECOND, 1000000);
    advance (10000 * MILLISECOND);
    efficiency = (double) (busy (&first) + busy (&second)) / 1e10;
    tap_ok (near ((double) busy (&first) / (double) busy (&second), 1, 0.01), "however long the pieces are");
    tap_ok (near (efficiency, 1.024 / 1.239, 0.002), "the efficiency is T / (T + 0.215 ms)");
    leave (&first);
    leave (&second);
}

static void tenants (void)
{
    struct tenant many = arrive (3, 2000), one = arrive (1, 2000);

    for (unsigned i = 0; i < 3; i++)
        give (&many, i, MILLISECOND, 1000000);
    give (&one, 0, MILLISECOND, 1000000);
    advance (10000 * MILLISECOND);
    tap_ok (near ((double) busy (&many) / (double) busy (&one), 3, 0.01), "a tenant with three groups has three slices");
    leave (&many);
    uint64_t before = busy (&one);
    advance (1000 * MILLISECOND);
    tap_ok (busy (&one) - before > 999 * MILLISECOND, "unused time of a tenant goes to the others: work conserving");
    leave (&one);
}

static void freezing (void)
{
    struct tenant one = arrive (1, 2000), two = arrive (1, 2000);

    give (&one, 0, MILLISECOND, 1000000);
    advance (100 * MILLISECOND);
    uint64_t before = busy (&one);
    tap_ok (freeze (&one, true, one.client) == 0, "channels can be stopped");
    advance (100 * MILLISECOND);
    tap_ok (busy (&one) - before == 500000, "they go on for 500 us");
    before = busy (&one);
    freeze (&one, false, one.client);
    advance (MILLISECOND);
    tap_ok (busy (&one) - before == 700000, "and go on again 300 us after the call");
    freeze (&one, true, one.client);
    freeze (&one, true, one.client);
    freeze (&one, false, one.client);
    advance (10 * MILLISECOND);
    before = busy (&one);
    advance (100 * MILLISECOND);
    tap_ok (busy (&one) == before, "a channel stopped twice and started once is stopped");
    freeze (&one, false, one.client);
    freeze (&one, false, one.client);
    freeze (&one, true, one.client);
    advance (10 * MILLISECOND);
    before = busy (&one);
    advance (100 * MILLISECOND);
    tap_ok (busy (&one) == before, "a start of a running channel is not counted");
    freeze (&one, false, one.client);
    advance (MILLISECOND);
    give (&two, 0, MILLISECOND, 1000000);
    freeze (&one, true, one.client);
    advance (100 * MILLISECOND);
    before = busy (&two);
    advance (100 * MILLISECOND);
    tap_ok (busy (&two) - before == 100 * MILLISECOND, "meanwhile the others have the GPU");
    give (&two, 0, MILLISECOND, 1000000);
    tap_ok (freeze (&one, true, two.client) == 0, "another open file's client is stopped, too: the driver has no check");
    advance (10 * MILLISECOND);
    before = busy (&two);
    advance (100 * MILLISECOND);
    tap_ok (busy (&two) == before && freeze (&one, false, two.client) == 0, "and no tenant computes any more");
    tap_ok (freeze (&one, false, 0x1234) == 0x23, "a missing client is refused (0x23)");
    leave (&one);
    tap_ok (busy (&two) > 0, "a tenant that ends while stopped leaves nothing behind");
    leave (&two);
}

/* The same history in one step and in many. */
static uint64_t history (uint64_t step)
{
    struct tenant one = arrive (1, 1700), two = arrive (2, 900);

    give (&one, 0, 777777, 5000);
    give (&two, 0, 123457, 5000);
    give (&two, 1, 9999999, 400);
    for (uint64_t now = 0; now < 5000 * MILLISECOND; now += step)
        advance (step);
    uint64_t sum = busy (&one) * 31 + look (&two, 0).busy_ns * 7 + look (&two, 1).finished;
    leave (&one);
    leave (&two);
    return sum;
}

static void exactness (void)
{
    uint64_t whole = history (5000 * MILLISECOND);

    tap_ok (whole == history (MILLISECOND / 10), "the result does not depend on the number of queries");
    struct tenant one = arrive (1, 1), two = arrive (1, 1);
    give (&one, 0, 1, UINT64_MAX / 4);
    give (&two, 0, 1, UINT64_MAX / 4);
    advance (UINT64_C (100) * 365 * 24 * 3600 * 1000 * MILLISECOND);
    tap_ok (busy (&one) > 0 && busy (&two) > 0, "a century of tiny slices is computed at once");
    tap_ok (give (&one, 0, 1, UINT64_MAX) == 0x1A, "more work than can be counted is refused");
    leave (&one);
    leave (&two);
}

int main (void)
{
    bed_start ();
    alone ();
    shares ();
    tenants ();
    freezing ();
    exactness ();
    bed_stop ();
    return tap_done ();
}
