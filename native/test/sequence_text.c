/* Steps as lines of text: "free p0 d0 c1 h3", and with what a continued call becomes: "client p0 d0 c4 ~2 memory p0 d0 c0 o0 h5 z4". */
#include "sequence.h"

#include <stdlib.h>
#include <string.h>

/* p process; d descriptor; c client; o parent; h object; z size; f a number; r range; q, e, k, i: another process, descriptor,
 * client, object. 16 as an object: the client itself. */
const struct action_row action_rows[ACTIONS] = {
    [START] = { "start", "pcf", 2 },
    [OPEN] = { "open", "pdf", 1 },
    [CLOSE] = { "close", "pd", 1 },
    [PASS] = { "pass", "pdqe", 2 },
    [FORK] = { "fork", "pf", 2 },
    [EXECUTE] = { "execute", "p", 1 },
    [EXIT] = { "exit", "p", 1 },
    [CLIENT] = { "client", "pdc", 2 },
    [DEVICE] = { "device", "pdch", 4 },
    [SUBDEVICE] = { "subdevice", "pdcoh", 2 },
    [SPACE] = { "space", "pdcoh", 1 },
    [MEMORY] = { "memory", "pdcohz", 8 },
    [SYSTEM] = { "system", "pdcohz", 1 },
    [GROUP] = { "group", "pdcohf", 4 },
    [CHANNEL] = { "channel", "pdcohf", 6 },
    [COMPUTE] = { "compute", "pdcoh", 6 },
    [CONTEXT] = { "context", "pdcoh", 4 },
    [SCHEDULE] = { "schedule", "pdchf", 6 },
    [SLICE] = { "slice", "pdch", 1 },
    [FREE] = { "free", "pdch", 8 },
    [DUPLICATE] = { "duplicate", "pdcohki", 6 },
    [SHARE] = { "share", "pdchfk", 3 },
    [EXPORT] = { "export", "pdche", 2 },
    [IMPORT] = { "import", "pdcohe", 2 },
    [HEAP] = { "heap", "pdcohz", 2 },
    [HEAP_FREE] = { "heap-free", "pdcoh", 2 },
    [OS_MEMORY] = { "os-memory", "pdcohf", 1 },
    [OBJECT] = { "object", "pdcohf", 1 },
    [BATCH] = { "batch", "pdcoe", 1 },
    [UVM] = { "uvm", "pdf", 1 },
    [UVM_SPACE] = { "uvm-space", "pdch", 1 },
    [RANGE] = { "range", "pdr", 1 },
    [MAP] = { "map", "pdchr", 8 },
    [UNMAP] = { "unmap", "pdr", 1 },
    [RANGE_FREE] = { "range-free", "pdr", 1 },
    [MANAGED] = { "managed", "pdz", 2 },
    [UNMANAGED] = { "unmanaged", "pf", 1 },
    [WAIT] = { "wait", "f", 5 },
    [FREEZE] = { "freeze", "tf", 2 },
};
/* The smallest with pages of 4 KiB. */
const uint64_t action_sizes[SIZES] = { 4096, 65536, 1u << 20, 32u << 20, 64u << 20, 256u << 20 };
const uint32_t action_waits[5] = { 1, 5, 50, 1100, 3000 };

bool is_listed (const char *list, const char *word)
{
    size_t length;

    for (; list != NULL && *list != '\0'; list += length + (list[length] == ',')) {
        length = strcspn (list, ",");
        if (strlen (word) == length && strncmp (list, word, length) == 0)
            return true;
    }
    return false;
}

static void print_action (const struct action *action, FILE *to)
{
    const struct action_row *row = &action_rows[action->kind];

    fputs (row->name, to);
    for (size_t i = 0; row->words[i] != '\0'; i++)
        fprintf (to, " %c%u", row->words[i], action->words[i]);
}

void step_print (const struct step *step, FILE *to)
{
    print_action (&step->action, to);
    if (step->delay != 0) {
        fprintf (to, " ~%u ", step->delay);
        print_action (&step->other, to);
    }
    fputc ('\n', to);
}

/* Where the text goes on; NULL: it is no action. */
static const char *parse_action (const char *text, struct action *action)
{
    size_t length = strcspn (text, " \n");

    *action = (struct action) { 0 };
    while (action->kind < ACTIONS &&
           (strlen (action_rows[action->kind].name) != length || strncmp (action_rows[action->kind].name, text, length) != 0))
        action->kind++;
    if (action->kind == ACTIONS)
        return NULL;
    text += length;
    for (size_t i = 0; action_rows[action->kind].words[i] != '\0'; i++) {
        char *end;

        if (text[0] != ' ' || text[1] != action_rows[action->kind].words[i])
            return NULL;
        action->words[i] = (uint8_t) strtoul (text + 2, &end, 10);
        text = end;
    }
    return text;
}

bool step_parse (const char *line, struct step *step)
{
    char *end;

    *step = (struct step) { 0 };
    line = parse_action (line, &step->action);
    if (line == NULL || *line == '\n' || *line == '\0')
        return line != NULL;
    if (strncmp (line, " ~", 2) != 0)
        return false;
    step->delay = (uint8_t) strtoul (line + 2, &end, 10);
    line = *end == ' ' ? parse_action (end + 1, &step->other) : NULL;
    return line != NULL && step->delay != 0 && (*line == '\n' || *line == '\0');
}
