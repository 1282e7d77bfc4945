/* Finding rows: a branch's own differences first, then its parent's. */
#include "abi.h"

#include "uvm_ioctl.h"

/* Every row begins with its number. What a branch changes is few rows, mostly close together: most numbers are none of
 * them, which its first and last row say. */
static inline const void *find_row (const void *rows, unsigned count, size_t row_size, uint32_t number)
{
    const uint8_t *low = rows;

#define NUMBER_OF(row) (*(const uint32_t *) (const void *) (row))
    if (count == 0 || number < NUMBER_OF (low) || number > NUMBER_OF (low + (count - 1) * row_size))
        return NULL;
    for (unsigned left = count; left > 1;) {
        unsigned half = left / 2;

        if (NUMBER_OF (low + half * row_size) <= number)
            low += half * row_size;
        left -= half;
    }
    return NUMBER_OF (low) == number ? low : NULL;
}

const struct rm_escape *rm_abi_varying_escape (const struct rm_abi *abi, uint32_t number)
{
    const struct rm_escape *row = &rm_abi_escapes[number];

    for (bool is_found = false; !is_found && abi != &rm_abi_535; abi = abi->parent)
        for (unsigned i = 0; !is_found && i < abi->escape_count; i++) {
            is_found = abi->escapes[i].number == number;
            row = is_found ? &abi->escapes[i] : row;
        }
    return row->kind != ESCAPE_UNKNOWN ? row : NULL;
}

const struct rm_class *rm_abi_class (const struct rm_abi *abi, uint32_t number)
{
    for (; abi != NULL; abi = abi->parent) {
        const struct rm_class *row = find_row (abi->classes, abi->class_count, sizeof (*row), number);

        if (row != NULL)
            return row->kind != CLASS_UNKNOWN ? row : NULL;
    }
    return NULL;
}

const struct rm_control *rm_abi_control (const struct rm_abi *abi, uint32_t number)
{
    for (; abi != NULL; abi = abi->parent) {
        const struct rm_control *row = find_row (abi->controls, abi->control_count, sizeof (*row), number);

        if (row != NULL)
            return row->kind != CONTROL_UNKNOWN ? row : NULL;
    }
    return NULL;
}

#define ROW(params) sizeof (params), offsetof (params, rmStatus)
const struct rm_uvm rm_abi_uvm_calls[UVM_LAST + 1][2] = {
    [UVM_MAP_EXTERNAL_ALLOCATION] = { { 1200, 1196, 0, 550 }, { 9264, 9260, 550, 0 } }, /* of 32 GPUs, of 256 */
    [UVM_FREE] = { { ROW (UVM_CREATE_EXTERNAL_RANGE_PARAMS), 0, 590 }, { ROW (UVM_FREE_PARAMS), 590, 0 } },
    [UVM_CREATE_EXTERNAL_RANGE] = { { ROW (UVM_CREATE_EXTERNAL_RANGE_PARAMS), 590, 0 } },
    [UVM_UNMAP_EXTERNAL] = { { ROW (UVM_UNMAP_EXTERNAL_PARAMS), 0, 0 } },
    [UVM_MAP_EXTERNAL_SPARSE] = { { ROW (UVM_UNMAP_EXTERNAL_PARAMS), 0, 0 } },
    [UVM_UNREGISTER_GPU_VASPACE] = { { ROW (UVM_UNREGISTER_GPU_VASPACE_PARAMS), 0, 0 } },
    [UVM_REGISTER_GPU] = { { ROW (UVM_REGISTER_GPU_PARAMS), 0, 0 } },
    [UVM_UNREGISTER_GPU] = { { ROW (UVM_UNREGISTER_GPU_PARAMS), 0, 0 } },
};

bool rm_abi_knows_uvm (const struct rm_abi *abi, uint32_t request)
{
    /* What uvm_ioctl and uvm_tools_ioctl route, without the driver's tests. */
    static const uint8_t known[] = {
        23, 24, 25, 26, 27, 28, 29, 30, 31, 33, 34, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 51, 53,
        54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75, 76, 77
    };

    if (request == UVM_INITIALIZE || request == UVM_DEINITIALIZE)
        return true;
    for (size_t i = 0; i < sizeof (known); i++)
        if (request == known[i])
            return true;
    /* ALLOC_DEVICE_P2P, CLEAR_ALL_ACCESS_COUNTERS; DISCARD */
    return (abi->branch >= 570 && (request == 78 || request == 79)) || (abi->branch >= 580 && request == 80);
}

enum rm_uvm_kind rm_abi_uvm_kind (const struct rm_abi *abi, uint32_t request)
{
    if (request < UVM_ANNOUNCED_FIRST || request >= UVM_ANNOUNCED_END)
        return UVM_KIND_NONE;
    if (request == UVM_CLEAR_ALL_ACCESS_COUNTERS)
        return UVM_KIND_ANSWERED;
    return rm_abi_knows_uvm (abi, request) ? UVM_KIND_NONE : UVM_KIND_REFUSED;
}

/* A number of a version: digits only, and few of them. */
static bool read_number (const char **text, unsigned *value)
{
    unsigned digits = 0;

    *value = 0;
    for (; **text >= '0' && **text <= '9'; (*text)++) {
        if (++digits > 6)
            return false;
        *value = *value * 10 + (unsigned) (**text - '0');
    }
    return digits > 0;
}

const struct rm_abi *rm_abi_find (const char *version)
{
    const struct rm_abi *found = NULL;
    unsigned major, number, last;

    if (version == NULL || !read_number (&version, &major))
        return NULL;
    /* up to two numbers more: 535.179, 580.159.04 */
    for (unsigned more = 0; *version != '\0'; more++) {
        if (more == 2 || *version != '.')
            return NULL;
        version++;
        if (!read_number (&version, &number))
            return NULL;
    }
    last = rm_abi_branches[rm_abi_branch_count - 1]->branch;
    /* Branches are five apart at least: a major beyond the last one's is a driver whose interface was not compared. */
    if (major >= last + 5)
        return NULL;
    for (unsigned i = 0; i < rm_abi_branch_count; i++)
        if (rm_abi_branches[i]->branch <= major)
            found = rm_abi_branches[i];
    return found;
}
