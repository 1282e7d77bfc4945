/* Records that outlive their process: read by another rm, also when the process was killed in the middle of a call. */
#include "rm_fake.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>

#define VERSION "580.159.04"
#define FILE_A 1
#define FILE_B 2
#define ARENA (1u << 20)
#define SNAPS 64

static uint8_t *arena;
static size_t used;
static struct fake *fake;
/* What a killed process would have left, at every question that rm asks its host while `wants_snaps`. */
static bool wants_snaps;
static uint8_t *snaps[SNAPS];
static unsigned snap_count;

static void *keep (void *context, size_t size)
{
    void *piece = arena + used;

    (void) context;
    used += (size + 15) & ~(size_t) 15;
    return used <= ARENA ? piece : NULL;
}

static void release (void *context, void *memory, size_t size)
{
    if ((uint8_t *) memory < arena || (uint8_t *) memory >= arena + ARENA)
        fake_host.release (context, memory, size);
}

static void refund (void *context, int gpu, uint64_t bytes)
{
    if (wants_snaps && snap_count < SNAPS) {
        snaps[snap_count] = malloc (ARENA);
        memcpy (snaps[snap_count++], arena, ARENA);
    }
    fake_host.refund (context, gpu, bytes);
}

static struct rm_host host;

/* Another process's rm, from a copy of the records, with a host of its own. */
static struct fake *restored (const uint8_t *records, bool *good)
{
    struct fake *other = fake_open (VERSION, RM_POSTURE_GUARD);
    uint8_t *copy = malloc (ARENA);

    memcpy (copy, records, ARENA);
    *good = rm_restore (other->rm, copy, used, (uint64_t) (uintptr_t) arena);
    free (copy);
    return other;
}

/* How often more the driver was told to stop the channel than to start it; and more times more. */
static unsigned times_stopped (struct fake *driver, uint32_t channel, unsigned more)
{
    for (unsigned i = 0; i < driver->object_count; i++)
        if (driver->objects[i].live && driver->objects[i].handle == channel)
            return driver->objects[i].frozen += more;
    return 99;
}

static bool same (const struct rm *one, const struct rm *two)
{
    struct rm_totals first, second;

    rm_totals (one, &first);
    rm_totals (two, &second);
    return memcmp (&first, &second, sizeof (first)) == 0;
}

int main (void)
{
    struct rm_channel before[4], after[4];
    uint32_t client, other_client, device, group, handles[3] = { 0 }, copy = 0;
    uint64_t bytes = 8 * MIB;
    struct fake *other;
    struct rm_totals totals;
    bool good, is_right = true;

    arena = calloc (1, ARENA);
    fake = fake_open (VERSION, RM_POSTURE_GUARD);
    rm_destroy (fake->rm);
    host = fake_host;
    host.keep = keep;
    host.release = release;
    host.refund = refund;
    fake->rm = rm_create (rm_abi_find (VERSION), RM_POSTURE_GUARD, &host, fake);
    client = fake_client (fake, FILE_A);
    device = fake_device (fake, FILE_A, client, 0);
    fake_subdevice (fake, FILE_A, client, device);
    for (unsigned i = 0; i < 3; i++)
        fake_memory (fake, FILE_A, client, device, &handles[i], &bytes);
    fake_dup (fake, FILE_A, client, device, &copy, client, handles[0]);
    fake_free (fake, FILE_A, client, handles[0]);
    fake_free (fake, FILE_A, client, handles[1]);
    group = fake_group (fake, FILE_A, client, device, 1);
    fake_channel (fake, FILE_A, client, group);
    fake_channel (fake, FILE_A, client, group);
    other_client = fake_client (fake, FILE_B);
    fake_subdevice (fake, FILE_B, other_client, fake_device (fake, FILE_B, other_client, 1));

    other = restored (arena, &good);
    tap_ok (good && same (fake->rm, other->rm) && fake->used[0] == other->used[0] && other->used[0] == 2 * bytes,
            "what was kept is there again, and charged");
    tap_ok (rm_channels (fake->rm, before, 4) == 2 && rm_channels (other->rm, after, 4) == 2 &&
                before[0].subdevice == after[0].subdevice && before[0].group == after[0].group &&
                before[0].file == after[0].file && rm_groups (other->rm, 0) == 1,
            "channels with their group, subdevice and file");
    is_right = true;
    for (unsigned was_stopped = 0; was_stopped < 2; was_stopped++) {
        struct fake *stopped = restored (arena, &good);

        memcpy (stopped->objects, fake->objects, sizeof (fake->objects));
        stopped->object_count = fake->object_count;
        is_right &= times_stopped (stopped, before[0].channel, was_stopped) == was_stopped;
        is_right &= rm_freeze (stopped->rm, 0, true) == 0 && times_stopped (stopped, before[0].channel, 0) == 1;
        is_right &= rm_freeze (stopped->rm, 0, true) == 0 && times_stopped (stopped, before[0].channel, 0) == 1;
        is_right &= rm_freeze (stopped->rm, 0, false) == 0 && times_stopped (stopped, before[0].channel, 0) == 0;
        rm_close_file (stopped->rm, FILE_A);
        rm_close_file (stopped->rm, FILE_B);
        fake_close (stopped);
    }
    tap_ok (is_right, "whether they run or not, a stop stops them once");
    rm_drop (other->rm, client, copy);
    tap_ok (other->used[0] == bytes, "a duplicate's memory is refunded with its last handle");
    rm_close_file (other->rm, FILE_A);
    rm_totals (other->rm, &totals);
    tap_ok (other->used[0] == 0 && totals.memories == 0 && totals.clients == 1, "a file closes with all that it had");
    rm_close_file (other->rm, FILE_B);
    rm_totals (other->rm, &totals);
    tap_ok (totals.objects == 0 && fake_close (other), "and nothing is left");

    /* Killed while a client with everything below it was being dropped: what is left of it is dropped once more. */
    wants_snaps = true;
    fake_free (fake, FILE_A, client, client);
    wants_snaps = false;
    for (unsigned i = 0; i < snap_count; i++) {
        other = restored (snaps[i], &good);
        is_right &= good && rm_has_object (other->rm, other_client, other_client);
        rm_drop (other->rm, client, client);
        is_right &= same (fake->rm, other->rm) && other->used[0] == 0;
        rm_close_file (other->rm, FILE_B);
        is_right &= fake_close (other);
        free (snaps[i]);
    }
    tap_ok (snap_count >= 2 && is_right, "a process that was killed in the middle of freeing a tree leaves what can be freed");
    snaps[0] = malloc (ARENA);
    memcpy (snaps[0], arena, ARENA);
    memset (snaps[0] + 4096, 0x5a, 4096);
    other = restored (snaps[0], &good);
    free (snaps[0]);
    rm_close_file (other->rm, FILE_A);
    rm_close_file (other->rm, FILE_B);
    tap_ok (fake_close (other), "records that make no sense are no records");
    rm_destroy (fake->rm);
    free (arena);
    return tap_done ();
}
