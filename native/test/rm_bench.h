/* What the tests of charges begin with: a client with a device on the first GPU, and a limit for both GPUs. */
#ifndef NVC_TEST_RM_BENCH_H
#define NVC_TEST_RM_BENCH_H

#include "rm_fake.h"

#define VERSION "580.159.04"
#define FILE_A 1
#define FILE_B 2

struct bench {
    struct fake *fake;
    uint32_t client, device, subdevice;
};

static inline struct bench bench (uint64_t limit)
{
    struct bench b = { .fake = fake_open (VERSION, RM_POSTURE_SHIM) };

    b.fake->limit[0] = b.fake->limit[1] = limit;
    b.client = fake_client (b.fake, FILE_A);
    b.device = fake_device (b.fake, FILE_A, b.client, 0);
    b.subdevice = fake_subdevice (b.fake, FILE_A, b.client, b.device);
    return b;
}

static inline uint32_t take (struct bench *b, uint64_t bytes, uint32_t *handle)
{
    *handle = 0;
    return fake_memory (b->fake, FILE_A, b->client, b->device, handle, &bytes);
}

static inline bool even (struct bench *b)
{
    return fake_charged (b->fake, 0) == fake_bytes (b->fake, 0) && fake_charged (b->fake, 1) == fake_bytes (b->fake, 1);
}

#endif
