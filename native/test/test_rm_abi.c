/* The tables: which versions they know, and that no number that programs were seen to use lacks a row. */
#include "rm_fake.h"
#include "rm_seen.h"
#include "tap.h"

#include <string.h>

#define COUNT(array) (sizeof (array) / sizeof ((array)[0]))

static unsigned branch (const char *version)
{
    const struct rm_abi *abi = rm_abi_find (version);

    return abi != NULL ? abi->branch : 0;
}

static void versions (void)
{
    static const char *const bad[] = { "",       "x",      "580.",   ".580",          "580.1.2.3", "580.159.04x",
                                       "580 .1", "-580.1", "580.-1", "99999999999.1", "580..1" };
    bool is_refused = true;

    tap_ok (branch ("580.159.04") == 580 && branch ("580.65.06") == 580 && branch ("580") == 580, "580.159.04 is of branch 580");
    tap_ok (branch ("535.104.05") == 535 && branch ("540.1") == 535 && branch ("545.29.06") == 545 && branch ("550.54.14") == 550,
            "a version between two branches has the older one's tables");
    tap_ok (branch ("555.58.02") == 555 && branch ("565.77") == 560 && branch ("575.64.05") == 570 && branch ("595.45.04") == 595,
            "565 is as 560, 575 as 570, 555 and 595 are branches, and the latter is the last");
    tap_ok (branch ("600.1") == 0 && branch ("615.1.1") == 0 && branch ("530.41.03") == 0 && branch ("470.1") == 0,
            "a version above the last branch or below the first has none");
    for (size_t i = 0; i < COUNT (bad); i++)
        if (rm_abi_find (bad[i]) != NULL) {
            is_refused = false;
            printf ("# took %s\n", bad[i]);
        }
    tap_ok (is_refused && rm_abi_find (NULL) == NULL, "a malformed version has none");
}

static bool is_sorted (const struct rm_abi *abi)
{
    for (unsigned i = 0; abi->parent == NULL && i < abi->escape_count; i++)
        if (abi->escapes[i].number != (abi->escapes[i].kind != ESCAPE_UNKNOWN || abi->escapes[i].varies ? i : 0))
            return false;
    for (unsigned i = 1; abi->parent != NULL && i < abi->escape_count; i++)
        if (abi->escapes[i - 1].number >= abi->escapes[i].number)
            return false;
    if (abi->parent == NULL && abi->escape_count != RM_ESCAPES)
        return false;
    for (unsigned i = 1; i < abi->class_count; i++)
        if (abi->classes[i - 1].number >= abi->classes[i].number)
            return false;
    for (unsigned i = 1; i < abi->control_count; i++)
        if (abi->controls[i - 1].number >= abi->controls[i].number)
            return false;
    return true;
}

/* A row that says what the parent says already is a mistake: a difference that is none. */
static bool is_different (const struct rm_abi *abi)
{
    for (unsigned i = 0; i < abi->class_count; i++) {
        const struct rm_class *row = &abi->classes[i], *old = abi->parent != NULL ? rm_abi_class (abi->parent, row->number) : NULL;

        if (old != NULL && old->kind == row->kind && old->size == row->size && old->size_at == row->size_at)
            return false;
    }
    for (unsigned i = 0; i < abi->control_count; i++) {
        const struct rm_control *row = &abi->controls[i];
        const struct rm_control *old = abi->parent != NULL ? rm_abi_control (abi->parent, row->number) : NULL;

        if (old != NULL && old->kind == row->kind && old->size == row->size)
            return false;
    }
    return true;
}

/* What the first branch says of the later ones' escapes. */
static bool varies (unsigned number)
{
    for (unsigned i = 1; i < rm_abi_branch_count; i++)
        for (unsigned row = 0; row < rm_abi_branches[i]->escape_count; row++)
            if (rm_abi_branches[i]->escapes[row].number == number)
                return true;
    return false;
}

/* Every row is found, in each branch that inherits it and where it is not taken away. */
static bool are_found (const struct rm_abi *abi)
{
    for (const struct rm_abi *at = abi; at != NULL; at = at->parent) {
        for (unsigned i = 0; at->parent != NULL && at == abi && i < at->escape_count; i++)
            if (rm_abi_escape (abi, at->escapes[i].number) != &at->escapes[i])
                return false;
        for (unsigned i = 0; i < at->class_count; i++) {
            const struct rm_class *row = rm_abi_class (abi, at->classes[i].number);

            if (row == NULL || row->number != at->classes[i].number || (at == abi && row != &at->classes[i]))
                return false;
        }
        for (unsigned i = 0; i < at->control_count; i++) {
            const struct rm_control *row = rm_abi_control (abi, at->controls[i].number);

            if (row == NULL || row->number != at->controls[i].number || (at == abi && row != &at->controls[i]))
                return false;
        }
    }
    return true;
}

static void tables (void)
{
    bool is_good = true, is_said = true, is_found = true;

    for (unsigned i = 0; i < rm_abi_branch_count; i++) {
        const struct rm_abi *abi = rm_abi_branches[i];

        is_good = is_good && is_sorted (abi) && is_different (abi) && abi->first_graphics == 1;
        is_good = is_good && (i == 0 ? abi->parent == NULL : abi->parent == rm_abi_branches[i - 1]);
    }
    tap_ok (is_good, "rows are sorted, and every branch differs from its parent where it says so");
    for (unsigned number = 0; number < RM_ESCAPES; number++)
        is_said = is_said && (rm_abi_535.escapes[number].varies != 0) == varies (number);
    tap_ok (is_said, "the first branch says which escapes differ in others");
    for (unsigned i = 0; i < rm_abi_branch_count; i++) {
        const struct rm_class *last = &rm_abi_535.classes[rm_abi_535.class_count - 1];

        is_found = is_found && are_found (rm_abi_branches[i]);
        is_found = is_found && rm_abi_class (rm_abi_branches[i], last->number + 1) == NULL;
        is_found = is_found && rm_abi_class (rm_abi_branches[i], UINT32_MAX) == NULL;
        is_found = is_found && rm_abi_escape (rm_abi_branches[i], RM_ESCAPES) == NULL;
    }
    tap_ok (is_found, "and every row is found");
}

static uint32_t class_size (const char *version, uint32_t number)
{
    const struct rm_class *row = rm_abi_class (rm_abi_find (version), number);

    return row != NULL ? row->size : 0xffff;
}

static uint32_t control_size (const char *version, uint32_t number) { return rm_abi_control (rm_abi_find (version), number)->size; }

static bool takes (const char *version, uint32_t number, uint32_t size)
{
    return rm_head_size (rm_abi_find (version), RM_NODE_CONTROL, REQUEST (number, size)) == size;
}

static void differences (void)
{
    tap_ok (class_size ("535.288.01", 0x40) == 120 && class_size ("545.23.06", 0x40) == 128 &&
                class_size ("595.45.04", 0x40) == 128,
            "params of video memory are 120 bytes in 535, 128 after it");
    tap_ok (class_size ("550.163.01", 0xc86f) == 360 && class_size ("565.77", 0xc96f) == 360 &&
                class_size ("570.86.15", 0xc86f) == 368,
            "params of a channel are 360 bytes before 570, 368 from there on");
    tap_ok (class_size ("575.51.02", 0x90f1) == 48 && class_size ("580.65.06", 0x90f1) == 56,
            "params of an address space grow in 580");
    tap_ok (class_size ("550.54.14", 0xca6f) == 0xffff && class_size ("570.86.15", 0xca6f) == 368,
            "a Blackwell channel is a class from 570 on");
    tap_ok (class_size ("550.163.01", 0xfe) == 8 && class_size ("555.58.02", 0xfe) == 24 &&
                control_size ("545.29.06", 0x127) == 168 && control_size ("550.54.14", 0x127) == 176 &&
                control_size ("535.104.05", 0x3d08) == 76 && control_size ("545.23.06", 0x3d08) == 80,
            "and what a control leads to has the size of its branch");
    tap_ok (takes ("570.86.15", 0x57, 56) && !takes ("570.86.15", 0x57, 64) && takes ("580.65.06", 0x57, 64) &&
                !takes ("580.65.06", 0x57, 56),
            "MAP_MEMORY_DMA is 56 bytes before 580, 64 from there on");
    tap_ok (takes ("535.104.05", 0x58, 40) && takes ("550.54.14", 0x58, 48) && takes ("560.35.03", 0xd9, 2600) &&
                takes ("570.86.15", 0xd9, 2608),
            "UNMAP_MEMORY_DMA and EXPORT_TO_DMABUF_FD grow in 550 and 570");
    tap_ok (takes ("580.65.06", 0x2b, 32) && takes ("580.65.06", 0x2b, 48) && !takes ("580.65.06", 0x2b, 40),
            "ALLOC has two sizes and no third");
    tap_ok (takes ("580.65.06", 0xc8, 72) && takes ("580.65.06", 0xc8, 2304) && !takes ("580.65.06", 0xc8, 100),
            "CARD_INFO is any number of cards");
}

static void seen (void)
{
    const struct rm_abi *abi = rm_abi_find ("580.159.04");
    unsigned missing = 0;

    for (size_t i = 0; i < COUNT (seen_escapes); i++)
        if (!takes ("580.159.04", seen_escapes[i][0], seen_escapes[i][1]) && ++missing)
            printf ("# escape %02x of %u bytes\n", (unsigned) seen_escapes[i][0], (unsigned) seen_escapes[i][1]);
    tap_ok (missing == 0, "every escape that was seen has a row of its size");
    for (size_t i = 0; i < COUNT (seen_classes); i++) {
        const struct rm_class *row = rm_abi_class (abi, seen_classes[i]);

        if ((row == NULL || row->kind == CLASS_FORBIDDEN) && ++missing)
            printf ("# class %04x\n", (unsigned) seen_classes[i]);
    }
    tap_ok (missing == 0, "every class that was seen has a row and is allowed");
    for (size_t i = 0; i < COUNT (seen_controls); i++) {
        const struct rm_control *row = rm_abi_control (abi, seen_controls[i][0]);

        if ((row == NULL || row->kind == CONTROL_FORBIDDEN || row->kind == CONTROL_SCHEDULING ||
             (row->size != 0 && row->size != seen_controls[i][1])) &&
            ++missing)
            printf ("# control %08x of %u bytes\n", (unsigned) seen_controls[i][0], (unsigned) seen_controls[i][1]);
    }
    tap_ok (missing == 0, "every control that was seen has a row and is allowed, with params of the size that was seen");
    for (size_t i = 0; i < COUNT (seen_uvm); i++)
        if (!rm_abi_knows_uvm (abi, seen_uvm[i]) && ++missing)
            printf ("# uvm %x\n", (unsigned) seen_uvm[i]);
    tap_ok (missing == 0 && !rm_abi_knows_uvm (abi, 9), "every request to UVM that was seen is known, its self-test is not");
}

static void envelope (void)
{
    const struct rm_abi *abi = rm_abi_find ("580.159.04");
    uint8_t head[48] = { 0 }, params[16] = { 0 };
    struct rm_wanted wanted;

    tap_ok (rm_is_interesting (abi, RM_NODE_CONTROL, REQUEST (0x2b, 48)) && rm_is_interesting (abi, RM_NODE_CONTROL, 0x0030002b) &&
                rm_is_interesting (abi, RM_NODE_GPU, 0xc038ff27),
            "the type byte and the direction of a request do not matter");
    tap_ok (!rm_is_interesting (abi, RM_NODE_OTHER, REQUEST (0x2b, 48)) &&
                !rm_is_interesting (abi, RM_NODE_UVM, REQUEST (0x2b, 48)) && rm_is_interesting (abi, RM_NODE_UVM, 37) &&
                !rm_is_interesting (abi, RM_NODE_CONTROL, REQUEST (0x4f, 32)) &&
                !rm_is_interesting (abi, RM_NODE_CONTROL, REQUEST (0xe0, 32)),
            "other nodes, plain escapes and unknown ones are not interesting");
    set32 (head, 12, 0x40);
    set64 (head, 16, 0x7000);
    wanted = rm_params_wanted (abi, RM_NODE_CONTROL, REQUEST (0x2b, 48), head);
    tap_ok (wanted.address == 0x7000 && wanted.size == 128, "a class's params have the table's size though paramsSize is 0");
    set32 (head, 8, 0x20801301);
    set32 (head, 24, 16);
    set32 (params, 0, 5);
    set64 (params, 8, 0x9000);
    wanted = rm_list_wanted (abi, RM_NODE_CONTROL, REQUEST (0x2a, 32), head, params);
    tap_ok (wanted.address == 0x9000 && wanted.size == 40, "FB_GET_INFO has a list of pairs behind a second pointer");
    set32 (params, 0, 0x20000000);
    wanted = rm_list_wanted (abi, RM_NODE_CONTROL, REQUEST (0x2a, 32), head, params);
    tap_ok (wanted.size == 0, "a list whose length would wrap is not wanted");
    set32 (head, 8, 0x20801303);
    set32 (head, 24, 0xffffffff);
    wanted = rm_params_wanted (abi, RM_NODE_CONTROL, REQUEST (0x2a, 32), head);
    tap_ok (wanted.size == 0, "params longer than the driver takes are not wanted");
    tap_ok (strcmp (rm_reason_word (RM_OVER_QUOTA), "over-quota") == 0 && strcmp (rm_reason_word (RM_TOO_MANY), "too-many") == 0 &&
                strcmp (rm_reason_word (RM_REASONS), "unknown-reason") == 0,
            "reasons have words");
}

int main (void)
{
    versions ();
    tables ();
    differences ();
    seen ();
    envelope ();
    return tap_done ();
}
