/* The parser of machine descriptions (machine.h): one table of keys, every length and number checked. Pure. */
#include "machine.h"

#include <stdio.h>
#include <string.h>

enum scope { SCOPE_SYSTEM, SCOPE_GPU, SCOPE_MIG, SCOPES };
enum kind { KIND_TEXT, KIND_U32, KIND_FLAG, KIND_U64, KIND_PAGEABLE };

struct field {
    const char *key;
    enum scope scope;
    enum kind kind;
    size_t offset;
    size_t size;
    bool required;
};

#define FIELD(scope, kind, type, member, required)                                                                                 \
    { #member, scope, kind, offsetof (type, member), sizeof (((type *) 0)->member), required }
#define SYSTEM(kind, member, required) FIELD (SCOPE_SYSTEM, kind, struct machine, member, required)
#define GPU(kind, member, required) FIELD (SCOPE_GPU, kind, struct machine_gpu, member, required)
#define MIG(kind, member, required) FIELD (SCOPE_MIG, kind, struct machine_mig, member, required)

static const struct field fields[] = {
    SYSTEM (KIND_TEXT, name, true),     SYSTEM (KIND_TEXT, driver, true),
    SYSTEM (KIND_TEXT, nvml, true),     SYSTEM (KIND_TEXT, control, false),
    SYSTEM (KIND_TEXT, store, false),   SYSTEM (KIND_U32, cuda, true),
    SYSTEM (KIND_FLAG, nodes, true),    SYSTEM (KIND_PAGEABLE, pageable, false),
    GPU (KIND_TEXT, uuid, true),        GPU (KIND_TEXT, model, true),
    GPU (KIND_TEXT, node, true),        GPU (KIND_U32, minor, true),
    GPU (KIND_U32, brand, true),        GPU (KIND_U32, domain, true),
    GPU (KIND_U32, bus, true),          GPU (KIND_U32, device, true),
    GPU (KIND_U32, pci_id, true),       GPU (KIND_U32, pci_subsystem, true),
    GPU (KIND_U32, arch_major, true),   GPU (KIND_U32, arch_minor, true),
    GPU (KIND_FLAG, mig_capable, true), GPU (KIND_FLAG, mig_enabled, true),
    GPU (KIND_U64, memory, true),       GPU (KIND_U64, memory_reserved, true),
    MIG (KIND_TEXT, uuid, true),        MIG (KIND_TEXT, profile, true),
    MIG (KIND_TEXT, gi_access, true),   MIG (KIND_TEXT, ci_access, true),
    MIG (KIND_U32, gi, true),           MIG (KIND_U32, ci, true),
    MIG (KIND_U32, gi_slices, true),    MIG (KIND_U32, ci_slices, true),
    MIG (KIND_U64, memory, true),
};

#define FIELDS (sizeof (fields) / sizeof (fields[0]))
_Static_assert (FIELDS <= 64, "the set of seen keys is a 64-bit mask");

struct reader {
    struct machine *machine;
    enum scope scope;
    void *objects[SCOPES]; /* the target of each scope's keys; NULL before the first */
    uint64_t seen[SCOPES]; /* one bit a field, of the open object of each scope */
    const char *problem;
    bool begun;
    bool ended;
};

static bool fail (struct reader *reader, const char *problem)
{
    if (reader->problem == NULL)
        reader->problem = problem;
    return false;
}

static bool number (struct reader *reader, const char *text, size_t size, uint64_t limit, uint64_t *result)
{
    uint64_t value = 0;

    if (size == 0 || size > 20)
        return fail (reader, "a number is expected");
    for (size_t i = 0; i < size; i++) {
        if (text[i] < '0' || text[i] > '9')
            return fail (reader, "a decimal number is expected");
        uint64_t digit = (uint64_t) (text[i] - '0');
        if (digit > limit || value > (limit - digit) / 10)
            return fail (reader, "the number is too large");
        value = value * 10 + digit;
    }
    *result = value;
    return true;
}

static bool text_value (struct reader *reader, char *target, size_t room, const char *text, size_t size)
{
    if (size == 0)
        return fail (reader, "the value is empty");
    if (size >= room)
        return fail (reader, "the value is too long");
    for (size_t i = 0; i < size; i++) {
        if ((unsigned char) text[i] < 0x20 || (unsigned char) text[i] > 0x7e)
            return fail (reader, "the value has a character that is not printable ASCII");
    }
    memcpy (target, text, size);
    target[size] = '\0';
    return true;
}

static bool equals (const char *text, size_t size, const char *word)
{
    return strlen (word) == size && memcmp (text, word, size) == 0;
}

/* In the order of enum machine_pageable. */
static bool pageable (struct reader *reader, const char *text, size_t size, uint64_t *result)
{
    static const char *const words[] = { "off", "hmm", "ats" };

    for (size_t i = 0; i < sizeof (words) / sizeof (words[0]); i++) {
        if (equals (text, size, words[i])) {
            *result = i;
            return true;
        }
    }
    return fail (reader, "pageable is one of: off, hmm, ats");
}

static bool store (struct reader *reader, const struct field *field, const char *text, size_t size)
{
    char *target = (char *) reader->objects[field->scope] + field->offset;
    uint64_t value = 0;

    if (field->kind == KIND_TEXT)
        return text_value (reader, target, field->size, text, size);
    uint64_t limit = field->kind == KIND_FLAG ? 1 : field->kind == KIND_U32 ? UINT32_MAX : (uint64_t) INT64_MAX;
    if (!(field->kind == KIND_PAGEABLE ? pageable (reader, text, size, &value) : number (reader, text, size, limit, &value)))
        return false;
    if (field->kind == KIND_U64) {
        memcpy (target, &value, sizeof (value));
    } else {
        uint32_t narrow = (uint32_t) value;
        memcpy (target, &narrow, sizeof (narrow));
    }
    return true;
}

/* Checks that the open object of `scope` has every required key. */
static bool close_scope (struct reader *reader, enum scope scope)
{
    if (reader->objects[scope] == NULL)
        return true;
    for (size_t i = 0; i < FIELDS; i++) {
        if (fields[i].scope == scope && fields[i].required && !(reader->seen[scope] & (UINT64_C (1) << i)))
            return fail (reader, "a key is missing in the part that ends here");
    }
    return true;
}

static bool open_scope (struct reader *reader, enum scope scope, void *object)
{
    for (int inner = SCOPES - 1; inner >= (int) scope; inner--) {
        if (!close_scope (reader, (enum scope) inner))
            return false;
        reader->objects[inner] = NULL;
    }
    reader->scope = scope;
    reader->objects[scope] = object;
    reader->seen[scope] = 0;
    return true;
}

static bool begin_gpu (struct reader *reader, const char *text, size_t size)
{
    struct machine *machine = reader->machine;
    uint64_t index;

    if (!number (reader, text, size, UINT32_MAX, &index))
        return false;
    if (index != machine->gpu_count)
        return fail (reader, "GPUs must be numbered 0, 1, 2 ...");
    if (machine->gpu_count >= MACHINE_MAX_GPUS)
        return fail (reader, "too many GPUs");
    if (!open_scope (reader, SCOPE_GPU, &machine->gpus[machine->gpu_count]))
        return false;
    machine->gpu_count++;
    return true;
}

static bool begin_mig (struct reader *reader, const char *text, size_t size)
{
    struct machine_gpu *gpu = reader->objects[SCOPE_GPU];
    uint64_t index;

    if (gpu == NULL)
        return fail (reader, "a MIG device must follow its GPU");
    if (!number (reader, text, size, UINT32_MAX, &index))
        return false;
    if (index != gpu->mig_count)
        return fail (reader, "MIG devices of a GPU must be numbered 0, 1, 2 ...");
    if (gpu->mig_count >= MACHINE_MAX_MIGS)
        return fail (reader, "too many MIG devices");
    if (!open_scope (reader, SCOPE_MIG, &gpu->migs[gpu->mig_count]))
        return false;
    gpu->mig_count++;
    return true;
}

/* "FUNCTION hang", "FUNCTION crash", "FUNCTION error N", "FUNCTION slow MILLISECONDS". */
static bool add_fault (struct reader *reader, const char *text, size_t size)
{
    static const struct {
        const char *word;
        enum machine_fault_kind kind;
        bool valued;
    } kinds[] = {
        { "error", FAULT_ERROR, true }, { "hang", FAULT_HANG, false }, { "crash", FAULT_CRASH, false }, { "slow", FAULT_SLOW, true }
    };
    struct machine *machine = reader->machine;
    const char *end = text + size;
    const char *space = memchr (text, ' ', size);

    if (machine->fault_count >= MACHINE_MAX_FAULTS)
        return fail (reader, "too many faults");
    if (space == NULL)
        return fail (reader, "a fault is a function and what happens to it");
    struct machine_fault *fault = &machine->faults[machine->fault_count];
    if (!text_value (reader, fault->function, sizeof (fault->function), text, (size_t) (space - text)))
        return false;
    const char *word = space + 1;
    const char *word_end = memchr (word, ' ', (size_t) (end - word));
    const char *value = word_end == NULL ? end : word_end + 1;
    if (word_end == NULL)
        word_end = end;
    for (size_t i = 0; i < sizeof (kinds) / sizeof (kinds[0]); i++) {
        uint64_t parsed = 0;
        if (!equals (word, (size_t) (word_end - word), kinds[i].word))
            continue;
        if (kinds[i].valued && !number (reader, value, (size_t) (end - value), 3600000, &parsed))
            return false;
        if (!kinds[i].valued && word_end != end)
            return fail (reader, "this kind of fault has no value");
        fault->kind = kinds[i].kind;
        fault->value = (uint32_t) parsed;
        machine->fault_count++;
        return true;
    }
    return fail (reader, "a fault is one of: error N, hang, crash, slow MILLISECONDS");
}

static bool end_machine (struct reader *reader, const char *text, size_t size)
{
    uint64_t count;

    if (!number (reader, text, size, UINT32_MAX, &count) || !open_scope (reader, SCOPE_SYSTEM, NULL))
        return false;
    if (count != reader->machine->gpu_count)
        return fail (reader, "the last line names another number of GPUs");
    for (uint32_t i = 0; i < reader->machine->gpu_count; i++) {
        const struct machine_gpu *gpu = &reader->machine->gpus[i];
        if (gpu->mig_count > 0 && !gpu->mig_enabled)
            return fail (reader, "a GPU has MIG devices and MIG is not enabled");
        if (gpu->memory_reserved > gpu->memory)
            return fail (reader, "a GPU reserves more memory than it has");
    }
    reader->ended = true;
    return true;
}

static bool key_value (struct reader *reader, const char *key, size_t key_size, const char *value, size_t value_size)
{
    if (!reader->begun) {
        uint64_t version = 0;
        if (!equals (key, key_size, "nvc-sim-machine"))
            return fail (reader, "this is not a machine description");
        if (!number (reader, value, value_size, UINT32_MAX, &version))
            return false;
        if (version != MACHINE_FORMAT)
            return fail (reader, "the format has a version this library does not know");
        reader->begun = true;
        return open_scope (reader, SCOPE_SYSTEM, reader->machine);
    }
    if (equals (key, key_size, "gpu"))
        return begin_gpu (reader, value, value_size);
    if (equals (key, key_size, "mig"))
        return begin_mig (reader, value, value_size);
    if (equals (key, key_size, "fault"))
        return add_fault (reader, value, value_size);
    if (equals (key, key_size, "end"))
        return end_machine (reader, value, value_size);
    for (size_t i = 0; i < FIELDS; i++) {
        if (fields[i].scope != reader->scope || !equals (key, key_size, fields[i].key))
            continue;
        if (reader->seen[reader->scope] & (UINT64_C (1) << i))
            return fail (reader, "a key is given twice");
        reader->seen[reader->scope] |= UINT64_C (1) << i;
        return store (reader, &fields[i], value, value_size);
    }
    return fail (reader, "unknown key");
}

bool machine_parse (const char *text, size_t size, struct machine *machine, char *problem, size_t problem_size)
{
    struct reader reader = { .machine = machine };
    const char *end = text + size;
    unsigned line_number = 0;

    memset (machine, 0, sizeof (*machine));
    if (size > MACHINE_TEXT_LIMIT)
        fail (&reader, "the description is too large");
    while (reader.problem == NULL && !reader.ended) {
        const char *newline = text < end ? memchr (text, '\n', (size_t) (end - text)) : NULL;
        line_number++;
        if (newline == NULL) {
            fail (&reader, "the description is cut off");
            break;
        }
        const char *equal = memchr (text, '=', (size_t) (newline - text));
        if (equal == NULL)
            fail (&reader, "a line is key=value");
        else
            key_value (&reader, text, (size_t) (equal - text), equal + 1, (size_t) (newline - equal - 1));
        text = newline + 1;
    }
    if (reader.problem == NULL && text != end)
        fail (&reader, "there is text after the end");
    if (reader.problem == NULL)
        return true;
    if (problem_size > 0)
        snprintf (problem, problem_size, "line %u: %s", line_number, reader.problem);
    memset (machine, 0, sizeof (*machine));
    return false;
}
