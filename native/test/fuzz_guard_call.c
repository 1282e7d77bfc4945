/*
 * Calls of a container with any structs, through the whole of call_ioctl, and a driver that answers anything: whatever the
 * driver follows in the guard's process is the guard's own, and of this call.
 */
#include "fuzz.h"
#include "guard_model.h"
#include "rm/abi.h"
#include "rm/bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t *input;
static size_t left;
static unsigned long calls_made;

/* How many calls went without a crash is what a long run is for (docs/measured/supervisors.md). */
__attribute__ ((destructor)) static void print_calls (void) { printf ("%lu calls\n", calls_made); }

static uint32_t take (unsigned bytes)
{
    uint32_t value = 0;

    for (; bytes > 0; bytes--) {
        value = value << 8 | (left > 0 ? *input : 0);
        input += left > 0;
        left -= left > 0;
    }
    return value;
}

static uint32_t take_byte (void) { return take (1); }

static void found (const char *what, uint32_t number)
{
    fprintf (stderr, "the driver was led elsewhere: %s, %#x\n", what, (unsigned) number);
    abort ();
}

#define PICK(list) ((list)[take (1) % (sizeof (list) / sizeof ((list)[0]))])

static const uint8_t escapes[] = { 0x2b, 0x2b, 0x29, 0x2a, 0x2a, 0x2a, 0x2a, 0x34, 0x4a, 0x27, 0x35, 0xd3, 0x41, 0x4f, 0x5e, 0xd6 };
/* Beside those that lead elsewhere: what rm has something to do about, and one of each kind of number. */
static const uint32_t controls[] = { 0x20801303, 0x2080018d, 0x2080018e, 0xa06c0103, 0xa06c0104, 0x2080110b,
                                     0x2080014a, 0x102,      0x20809064, 0x503c0102, 0x503c0104, 0x20800145 };
static const uint16_t sizes[] = { 0, 4, 8, 16, 24, 32, 40, 652, 1028, 2128, 3812, 14408 };

/* Pointers into the container, and small numbers, which are counts and descriptors. */
static void fill (uint64_t address)
{
    for (unsigned i = 0; i < 192 && address >= MODEL_ADDRESS && address + i + 8 <= MODEL_ADDRESS + MODEL_SIZE; i += 8) {
        uint32_t choice = take (1);

        set64 (model_at (address + i), 0,
               choice % 3 == 0    ? MODEL_ADDRESS + take (2)
               : choice % 16 == 1 ? MODEL_DESCRIPTOR
                                  : choice % 40);
    }
}

static void fill_control (uint8_t *head, uint64_t params)
{
    uint32_t choice = take (1), at = take (1) % (sizeof (driver_controls) / sizeof (driver_controls[0]));
    const struct driver_params *facts = choice % 4 != 0 ? &driver_controls[at] : NULL;
    uint32_t size = facts != NULL && choice % 3 != 0 && facts->size > 0 ? (uint32_t) facts->size : PICK (sizes);

    set32 (head, 8, facts != NULL ? facts->number : PICK (controls));
    set64 (head, 16, params);
    set32 (head, 24, choice == 0xff ? take (2) : size);
}

static void fill_head (uint32_t escape, uint8_t *head, uint64_t params)
{
    static const uint8_t functions[] = { 2, 3, 5, 6, 14, 27, 11 };
    uint32_t choice = take (1), at = take (1) % (sizeof (driver_classes) / sizeof (driver_classes[0]));

    memset (head, 0, 192);
    for (unsigned i = 0; i < 12; i += 4)
        set32 (head, i, take (1) % 6);
    if (escape == 0x2a)
        fill_control (head, params);
    else if (escape == 0x4a) {
        set32 (head, 8, PICK (functions));
        for (unsigned i = 40; i < 184; i += 8)
            set64 (head, i, take (1) % 4 == 0 ? MODEL_ADDRESS + take (1) : choice % 8);
    } else if (escape == 0x2b || escape == 0x27) {
        set32 (head, 12, driver_classes[at].number);
        if (choice % 5 != 0)
            set64 (head, 16, params);
        if (choice % 7 == 0)
            set64 (head, 24, MODEL_ADDRESS + take (2));
        set32 (head, 36, choice % 32 == 31);
    } else
        for (unsigned i = 16; i < 56 && choice % 2 == 0; i += 8)
            set64 (head, i, params);
}

static void call (void)
{
    uint32_t escape = PICK (escapes), choice = take (1);
    uint64_t address = MODEL_ADDRESS + take (1) % 16 * 512, params = MODEL_ADDRESS + 8192 + take (1) % 16 * 1024;
    const struct rm_escape *row = rm_abi_escape (model.tenant->abi, escape);
    uint32_t size = row != NULL && row->size != 0 && choice != 7 ? row->size : take (1);

    if (row != NULL && row->other != 0 && choice % 3 == 0)
        size = row->other;
    if (choice % 16 == 15) /* nowhere, or where the container's memory ends */
        params = choice < 128 ? take (4) : MODEL_ADDRESS + MODEL_SIZE - take (1);
    fill_head (escape, model_at (address), params);
    fill (params);
    calls_made++;
    model_call (choice == 11 ? 0 : MODEL_DESCRIPTOR, escape, size, choice == 12 ? take (4) : address);
}

int LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
    input = data;
    left = size;
    model.choose = take_byte;
    model.report = found;
    model_begin ();
    for (unsigned calls = 0; left > 8 && calls < 64; calls++)
        call ();
    model_end ();
    return 0;
}
