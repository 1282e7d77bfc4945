/*
 * The rows of rm beside the driver's own structs, branch by branch: whatever a guard performs and the driver follows
 * pointers or descriptors of is known by its exact size, and every one of them is replaced. Fails for a row that lacks;
 * docs/internals/adding-a-driver-version.md tells how the driver's side is made.
 */
#include "driver_facts.h"
#include "rm_fake.h"
#include "tap.h"

#include <string.h>

static unsigned wrong; /* of one struct */

static void complain (const char *what, const struct driver_params *facts, unsigned branch)
{
    wrong++;
    printf ("# %#x, branch %u: %s\n", (unsigned) facts->number, branch, what);
}

static const struct rm_abi *abi_of (unsigned branch)
{
    char text[16];

    snprintf (text, sizeof (text), "%u", branch);
    return rm_abi_find (text);
}

/* Params with three elements behind every pointer. */
static void fill (const struct driver_params *facts, uint8_t *params)
{
    memset (params, 0, (size_t) facts->size);
    for (unsigned i = 0; i < facts->pointer_count; i++) {
        set64 (params, facts->pointers[i].at, 0x1000 * (i + 1));
        if (facts->pointers[i].count_at != ANY)
            set32 (params, (size_t) facts->pointers[i].count_at, 3);
    }
}

static bool are_replaced (const struct driver_params *facts, const struct rm_embedded *embedded, const uint8_t *params)
{
    if (embedded->count != facts->pointer_count)
        return false;
    for (unsigned i = 0; i < embedded->count; i++) {
        const struct driver_pointer *pointer = &facts->pointers[i];
        const struct rm_wanted *wanted = &embedded->pieces[i].wanted;

        if (embedded->pieces[i].at != pointer->at || wanted->address != 0x1000 * (i + 1) || wanted->size == 0 ||
            (pointer->count_at != ANY && wanted->size != facts_bytes (pointer, params)))
            return false;
    }
    return embedded->descriptor_at == (facts->descriptor_at == NONE ? RM_NO_DESCRIPTOR : (uint32_t) facts->descriptor_at);
}

static bool takes_size (const struct rm_abi *abi, const struct driver_params *facts, uint32_t size)
{
    static uint8_t params[16384];
    struct rm_embedded embedded;
    uint8_t head[32] = { 0 };

    set32 (head, 8, facts->number);
    set32 (head, 24, size);
    return rm_params_fit (abi, head) || (size != 0 && rm_embedded (abi, facts->number, params, size, &embedded));
}

static void control (const struct rm_abi *abi, const struct driver_params *facts, unsigned branch)
{
    const struct rm_control *row = rm_abi_control (abi, facts->number);
    static uint8_t params[16384];
    struct rm_embedded embedded;

    if (row == NULL || row->kind == CONTROL_FORBIDDEN || row->kind == CONTROL_SCHEDULING)
        return; /* it is never made for a tenant */
    if (!facts_lead (facts)) {
        if (row->size != 0 && row->size != facts->size)
            complain ("a control with params of another size", facts, branch);
        return;
    }
    if (facts->size == ELSEWHERE || row->size != facts->size) {
        complain ("a control that leads elsewhere, without the size of its struct", facts, branch);
        return;
    }
    fill (facts, params);
    if (!rm_embedded (abi, facts->number, params, row->size, &embedded) || !are_replaced (facts, &embedded, params))
        complain ("pointers or a descriptor that are not replaced", facts, branch);
    if (takes_size (abi, facts, 0) || takes_size (abi, facts, 4) || takes_size (abi, facts, row->size - 1u) ||
        takes_size (abi, facts, row->size + 8u))
        complain ("params of another size are taken", facts, branch);
}

/* Those of which the driver follows nothing: it compares the one with names that ALLOC_OS_EVENT gave, and only writes the
 * others, which alloc_begin clears (below). */
static bool is_followed (uint32_t class)
{
    return class != 0x5 && class != 0x79 && class != 0x3e && class != 0x40 && class != 0x50a0;
}

static void class (const struct rm_abi *abi, const struct driver_params *facts, unsigned branch)
{
    const struct rm_class *row = rm_abi_class (abi, facts->number);

    if (row == NULL || row->kind == CLASS_FORBIDDEN)
        return;
    if (row->size != facts->size)
        complain ("a class with params of another size", facts, branch);
    if (facts_lead (facts) && is_followed (facts->number) && row->kind != CLASS_CALLER_BOUND)
        complain ("a class that leads elsewhere, and that not only the caller makes", facts, branch);
}

static void escape (const struct rm_abi *abi, const struct driver_params *facts, unsigned branch)
{
    const struct rm_escape *row = rm_abi_escape (abi, facts->number);

    if (row == NULL || row->kind == ESCAPE_FORBIDDEN)
        return;
    if (row->size != facts->size)
        complain ("an escape with a struct of another size", facts, branch);
    if (facts_lead (facts) && (row->kind == ESCAPE_PLAIN || row->kind == ESCAPE_FREE || row->kind == ESCAPE_DUP))
        complain ("an escape that leads elsewhere, and is performed as it is", facts, branch);
}

static void each (const struct driver_params *table, size_t count,
                  void (*check) (const struct rm_abi *, const struct driver_params *, unsigned), const char *claim)
{
    unsigned all = 0;

    for (size_t i = 0; i < count; i++, all += wrong) {
        wrong = 0;
        for (unsigned branch = table[i].since; branch <= table[i].until && wrong == 0; branch += 5) {
            const struct rm_abi *abi = abi_of (branch);

            if (abi != NULL)
                check (abi, &table[i], branch);
        }
    }
    tap_ok (all == 0, claim);
}

/* A row that says that it leads elsewhere is one that the driver's structs say, too: nothing is lost on the way here. */
static void no_row_is_left (void)
{
    bool is_known = true;

    for (unsigned b = 0; b < rm_abi_branch_count; b++)
        for (unsigned i = 0; i < rm_abi_535.control_count; i++) {
            const struct rm_control *row = rm_abi_control (rm_abi_branches[b], rm_abi_535.controls[i].number);

            if (row != NULL && row->size != 0 &&
                facts_find (FACTS_OF (driver_controls), rm_abi_branches[b]->branch, row->number) == NULL) {
                printf ("# no struct of control %#x\n", (unsigned) row->number);
                is_known = false;
            }
        }
    for (unsigned i = 0; i < rm_abi_535.class_count; i++) {
        const struct rm_class *row = &rm_abi_535.classes[i];

        if (facts_find (FACTS_OF (driver_classes), 535, row->number) == NULL) {
            printf ("# no struct of class %#x\n", (unsigned) row->number);
            is_known = false;
        }
    }
    tap_ok (is_known, "and of every row that has a size the driver's struct is known");
}

/* A pointer that the driver writes goes out as none, and comes back as what the driver wrote. */
static void addresses (void)
{
    struct fake *fake = fake_open ("580.159.04", RM_POSTURE_GUARD);
    uint32_t client = fake_client (fake, 1), device = fake_device (fake, 1, client, 0), handle = 0;
    static const uint32_t classes[] = { 0x3e, 0x40, 0x50a0 };
    bool are_none = true;

    fake->limit[0] = 64 * MIB;
    fake_subdevice (fake, 1, client, device);
    for (size_t i = 0; i < sizeof (classes) / sizeof (classes[0]); i++) {
        uint8_t params[128] = { 0 };

        set64 (params, 64, MIB);
        set64 (params, 96, 0x1000);
        fake_alloc (fake, 1, client, device, &handle, classes[i], params, sizeof (params));
        are_none = are_none && fake->decision == RM_PERFORM && get64 (params, 96) == 0;
    }
    for (uint32_t function = 2; function <= 14; function += function == 2 ? 4 : 8) { /* size, tiled, range */
        uint8_t head[184] = { 0 };
        size_t at = function == 14 ? 128 : 120;

        set32 (head, 0, client);
        set32 (head, 4, device);
        set32 (head, 8, function);
        set64 (head, at, 0x1000);
        fake_call (fake, RM_NODE_CONTROL, 1, REQUEST (0x4a, 184), head, NULL, 0, NULL, 0);
        are_none = are_none && get64 (head, at) == 0;
    }
    fake_close (fake);
    tap_ok (are_none, "an address that only the driver writes is none before it does");
}

int main (void)
{
    each (FACTS_OF (driver_controls), control, "controls: what leads elsewhere has its size, and is replaced");
    each (FACTS_OF (driver_classes), class, "classes: params have the driver's size, and what leads elsewhere is the caller's");
    each (FACTS_OF (driver_escapes), escape, "escapes: what leads elsewhere is the caller's, or has a handler");
    no_row_is_left ();
    addresses ();
    return tap_done ();
}
