/*
 * Which freed pieces are probed (retained.c).
 *
 * A probe costs some calls of the driver, so small pieces are probed with a probability that grows with their size: a program that
 * retains pieces, of whatever size, has retained CERTAIN_BYTES on the average when the first of them is found, and then all are
 * probed. The sampling decision is made when the piece is being freed, so a program cannot know it before.
 * Runs in the tenant's thread.
 */
#include "clock.h"
#include "guard_private.h"
#include "retained.h"

#include <sys/random.h>

#define CERTAIN_BYTES ((uint64_t) 32 << 20)

/* xorshift64*, from a secret seed. */
static uint64_t prng_next (struct retained *retained)
{
    while (retained->prng_state == 0)
        if (getrandom (&retained->prng_state, sizeof (retained->prng_state), 0) != sizeof (retained->prng_state))
            retained->prng_state = guard_now ();
    retained->prng_state ^= retained->prng_state >> 12;
    retained->prng_state ^= retained->prng_state << 25;
    retained->prng_state ^= retained->prng_state >> 27;
    return retained->prng_state * 0x2545f4914f6cdd1du >> 20;
}

bool retained_is_sampled (struct retained *retained, uint64_t bytes)
{
    return retained->sample_all || bytes >= CERTAIN_BYTES || prng_next (retained) % CERTAIN_BYTES < bytes;
}

uint64_t retained_weight (const struct rm_piece *pieces, size_t count)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < count; i++)
        if (pieces[i].is_exported || __builtin_add_overflow (sum, pieces[i].bytes, &sum))
            return UINT64_MAX;
    return sum;
}
