/*
 * Params of a size that the driver does not look at, and a pointer in params: what the driver is led to, and by whose pointers.
 * Harmless: everything leads to this program's own memory, at an address where no program has anything by itself. Made in
 * another process, such a call finds nothing there, and says so.
 */
#include "attack.h"

#define PLACE 0x424200000000u
#define TEXT 64u
/* nvstatuscodes.h: what is said of a size that is checked, and of memory that is not there. */
#define INVALID_ARGUMENT 0x1fu
#define INVALID_ADDRESS 0x1eu

/* Of NV0000 SYSTEM_GET_BUILD_VERSION, and of the others, the count and the first pointer. */
struct params {
    uint64_t count, pointers[3], numbers;
};

struct target {
    const char *name;
    uint32_t object, number, size;
    uint32_t count, pointers, bytes; /* of what lies behind each pointer */
};

static uint8_t *place;

static void prepare (const struct target *target, struct params *params)
{
    memset (place, 0, 4096);
    *params = (struct params) { .count = target->count };
    for (unsigned i = 0; i < target->pointers; i++)
        params->pointers[i] = PLACE + 1024 * i;
}

/* Whether something was written behind every pointer. */
static bool has_arrived (const struct target *target)
{
    static const uint8_t nothing[TEXT];

    for (unsigned i = 0; i < target->pointers; i++)
        if (memcmp (place + 1024 * i, nothing, target->bytes) == 0)
            return false;
    return true;
}

static uint32_t call (const struct bed *bed, const struct target *target, struct params *params, uint32_t size)
{
    prepare (target, params);
    return bed_control (bed, target->object, target->number, params, size);
}

static void say_of (const char *name, const char *what, uint64_t value)
{
    char key[64];

    snprintf (key, sizeof (key), "%s-%s", name, what);
    say (key, value);
}

/* The size of the driver's struct, which leaves its pointers with the caller; then none, and a part of it. */
static unsigned try (const struct bed *bed, const struct target *target)
{
    static const struct {
        const char *name;
        uint32_t size;
    } sizes[] = { { "none", 0 }, { "short", 4 } };
    struct params params;
    uint32_t status = call (bed, target, &params, target->size);
    bool is_text = target->number == 0x101;
    unsigned wrong = status == INVALID_ADDRESS || (is_text && (status != 0 || !has_arrived (target)));

    say_of (target->name, "whole", status);
    for (unsigned i = 0; i < 2; i++) {
        call (bed, target, &params, target->size);
        status = call (bed, target, &params, sizes[i].size);
        wrong += status != INVALID_ARGUMENT || (is_text && has_arrived (target));
        say_of (target->name, sizes[i].name, status);
    }
    return wrong;
}

/* A descriptor that the driver looks up before it looks at the size; of a number that is not open. */
static unsigned try_descriptor (const struct bed *bed)
{
    uint64_t params[2] = { 0, 0x7ffffff0 };
    uint32_t status;

    bed_control (bed, bed->client, 0xfd0104, params, sizeof (params));
    status = bed_control (bed, bed->client, 0xfd0104, params, 0);
    say ("descriptor-none", status);
    return status != INVALID_ARGUMENT;
}

/* Prints STATUS of each call by its name, and how many were not as they must be below a guard: "none" and "short" 31
 * (INVALID_ARGUMENT), "whole" anything but 30 (INVALID_ADDRESS), of build-version 0. Where there is no guard the first three
 * say 0 for all sizes. Below a guard that passes such params on, 30 and 58 (INVALID_PARAM_STRUCT) say that the driver was led
 * to this program's addresses in the guard's process. */
void attack_params (int argc, char **argv)
{
    struct bed bed = bed_open ();
    const struct target targets[] = {
        { "build-version", bed.client, 0x00000101, 40, TEXT, 3, TEXT }, { "bus-info", bed.subdevice, 0x20801802, 16, 1, 1, 8 },
        { "bios-info", bed.subdevice, 0x20800802, 16, 1, 1, 8 },        { "fb-info", bed.subdevice, 0x20801301, 16, 1, 1, 8 },
        { "encoder-caps", bed.device, 0x00801b01, 16, 5, 1, 5 },
    };
    unsigned wrong = 0;

    (void) argc, (void) argv;
    place = mmap ((void *) PLACE, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (place != (void *) PLACE)
        exit (3);
    for (unsigned i = 0; i < sizeof (targets) / sizeof (targets[0]); i++)
        wrong += try (&bed, &targets[i]);
    wrong += try_descriptor (&bed);
    say ("wrong", wrong);
}
