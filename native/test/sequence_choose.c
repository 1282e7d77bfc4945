/* Which step is next (sequence.h): mostly one that can succeed, with handles that are in use where that is of interest. Each sequence
 * does without some kinds of steps, so that rare combinations of the others occur. */
#include "sequence.h"

#include "manager_state.h"

#include <string.h>

#define NO_HANDLE 255u
#define FIRST_FREE 3u

static uint32_t draw (struct chooser *chooser, uint32_t below)
{
    chooser->random ^= chooser->random >> 12;
    chooser->random ^= chooser->random << 25;
    chooser->random ^= chooser->random >> 27;
    return (uint32_t) (chooser->random * 0x2545f4914f6cdd1du >> 33) % below;
}

static bool chance (struct chooser *chooser, uint32_t percent) { return draw (chooser, 100) < percent; }

void chooser_begin (struct chooser *chooser, uint64_t seed, const char *without)
{
    *chooser = (struct chooser) { .random = (seed + 1) * 0x9e3779b97f4a7c15u };
    for (unsigned i = 0; i < 8; i++)
        draw (chooser, 2);
    for (unsigned i = 0; i < ACTIONS; i++)
        chooser->weights[i] = chance (chooser, 70) ? (uint8_t) (action_rows[i].weight * (1 + draw (chooser, 3))) : 0;
    chooser->weights[MEMORY] |= 4;
    chooser->weights[WAIT] |= 2;
    for (unsigned i = 0; i < ACTIONS; i++)
        if (is_listed (without, action_rows[i].name))
            chooser->weights[i] = 0;
    chooser->races = draw (chooser, 2) ? 2 : 0;
}

static uint8_t choose_kind (struct chooser *chooser)
{
    unsigned sum = 0, at;
    uint8_t kind = 0;

    for (unsigned i = 0; i < ACTIONS; i++)
        sum += chooser->weights[i];
    for (at = draw (chooser, sum); at >= chooser->weights[kind]; kind++)
        at -= chooser->weights[kind];
    return kind;
}

static uint8_t choose_task (struct chooser *chooser)
{
    for (unsigned tried = 0; tried < 20; tried++) {
        uint32_t number = draw (chooser, kernel.task_count);

        if (number != NEIGHBOUR && kernel.tasks[number].is_alive)
            return (uint8_t) number;
    }
    return 0;
}

/* A descriptor of the task's, on such a node; 0 if it has none. */
static uint8_t choose_slot (struct chooser *chooser, const struct task *task, enum manager_node node)
{
    uint32_t first = draw (chooser, TASK_FILES);

    for (uint32_t i = 0; i < TASK_FILES; i++) {
        const struct description *file = task->files[(first + i) % TASK_FILES];

        if (file != NULL && file->node == node)
            return (uint8_t) ((first + i) % TASK_FILES);
    }
    return 0;
}

/* A client, and a process with a descriptor of its file. */
static struct client *choose_client (struct chooser *chooser, uint8_t words[3])
{
    uint32_t first = draw (chooser, CLIENTS - 1);

    words[0] = choose_task (chooser);
    words[1] = choose_slot (chooser, &kernel.tasks[words[0]], MANAGER_CONTROL);
    for (uint32_t i = 0; i < CLIENTS - 1; i++) {
        struct client *client;
        uint32_t name = (first + i) % (CLIENTS - 1), start = draw (chooser, kernel.task_count * TASK_FILES);

        if (world.clients[name].handle == 0 || (client = client_find (kernel.manager, world.clients[name].handle)) == NULL)
            continue;
        words[2] = (uint8_t) name;
        for (uint32_t k = 0; k < kernel.task_count * TASK_FILES; k++) {
            uint32_t at = (start + k) % (kernel.task_count * TASK_FILES);
            const struct task *task = &kernel.tasks[at / TASK_FILES];
            const struct description *file = task->files[at % TASK_FILES];

            if (!task->is_alive || task->tenant == NEIGHBOUR || file == NULL || file->file != client->file)
                continue;
            words[0] = (uint8_t) (at / TASK_FILES);
            words[1] = (uint8_t) (at % TASK_FILES);
            return client;
        }
    }
    words[2] = (uint8_t) first;
    return NULL;
}

static uint8_t choose_object (struct chooser *chooser, struct client *client, uint32_t kinds)
{
    uint32_t first = draw (chooser, HANDLES);

    for (uint32_t i = 0; client != NULL && i < HANDLES; i++) {
        const struct object *object = object_find (client, FIRST_HANDLE + (first + i) % HANDLES);

        if (object != NULL && (object->kind & kinds) != 0)
            return (uint8_t) ((first + i) % HANDLES);
    }
    return (uint8_t) first;
}

/* Mostly one that is not in use. */
static uint8_t choose_new (struct chooser *chooser, struct client *client, uint32_t used_percent)
{
    uint32_t first = draw (chooser, HANDLES);

    if (chance (chooser, used_percent))
        return choose_object (chooser, client, KIND_ANY);
    for (uint32_t i = 0; client != NULL && i < HANDLES; i++) {
        uint32_t at = (first + i) % HANDLES;

        if (at >= FIRST_FREE && object_find (client, FIRST_HANDLE + at) == NULL)
            return (uint8_t) at;
    }
    return (uint8_t) first;
}

static uint32_t parents_of (struct chooser *chooser, uint8_t kind)
{
    switch (kind) {
    case SUBDEVICE:
    case SPACE:
    case GROUP:
    case CONTEXT:
        return KIND_DEVICE;
    case CHANNEL:
        return chance (chooser, 75) ? KIND_GROUP : KIND_DEVICE;
    case COMPUTE:
        return KIND_CHANNEL;
    default:
        return KIND_DEVICE | KIND_SUBDEVICE;
    }
}

static uint32_t objects_of (struct chooser *chooser, uint8_t kind)
{
    switch (kind) {
    case SCHEDULE:
        return chance (chooser, 60) ? KIND_GROUP : KIND_CHANNEL;
    case SLICE:
        return KIND_GROUP;
    case MAP:
    case SHARE:
    case EXPORT:
        return KIND_MEMORY;
    case UVM_SPACE:
        return KIND_OTHER;
    case FREE:
        return chance (chooser, 60) ? KIND_MEMORY | KIND_GROUP | KIND_CHANNEL : KIND_ANY;
    default:
        return KIND_ANY;
    }
}

/* Of a call, by its words' letters. */
static void choose_call (struct chooser *chooser, struct action *action)
{
    const char *letters = action_rows[action->kind].words;
    uint8_t *words = action->words, source[3];
    struct client *client = choose_client (chooser, words), *other;

    for (size_t i = 3; letters[i] != '\0'; i++)
        switch (letters[i]) {
        case 'o':
            words[i] = choose_object (chooser, client, parents_of (chooser, action->kind));
            break;
        case 'h':
            words[i] = action->kind == DEVICE ? choose_new (chooser, client, 40)
                       : letters[3] == 'o' && action->kind != HEAP_FREE
                           ? choose_new (chooser, client, 8)
                           : choose_object (chooser, client, objects_of (chooser, action->kind));
            break;
        case 'z':
            words[i] = (uint8_t) draw (chooser, SIZES);
            break;
        case 'e':
            words[i] = choose_slot (chooser, &kernel.tasks[words[0]], action->kind == BATCH ? MANAGER_UVM : MANAGER_CONTROL);
            break;
        case 'k':
            other = choose_client (chooser, source);
            words[i] = source[2];
            if (letters[i + 1] == 'i')
                words[i + 1] = choose_object (chooser, other, KIND_MEMORY | (chance (chooser, 45) ? KIND_GROUP : 0));
            break;
        case 'r':
            words[i] = (uint8_t) draw (chooser, RANGES);
            break;
        case 'f':
            words[i] = (uint8_t) draw (chooser, action->kind == SHARE ? 16 : 4);
            break;
        default:
            break;
        }
    if (action->kind == FREE && chance (chooser, 6))
        words[3] = HANDLE_OF_CLIENT;
    if (action->kind == SCHEDULE) {
        const struct object *object = client != NULL ? object_find (client, FIRST_HANDLE + words[3]) : NULL;

        words[4] = object != NULL && object->kind == KIND_CHANNEL;
    }
    if (action->kind == UVM_SPACE || action->kind == MAP)
        words[1] = choose_slot (chooser, &kernel.tasks[words[0]], MANAGER_UVM);
    if (action->kind == OS_MEMORY)
        words[1] = choose_slot (chooser, &kernel.tasks[words[0]], MANAGER_GPU);
    if (action->kind == OBJECT)
        words[3] = words[5] == 0 ? HANDLE_OF_CLIENT : choose_object (chooser, client, KIND_DEVICE);
    if (action->kind == SHARE && chance (chooser, 10))
        words[3] = HANDLE_OF_CLIENT;
    if (action->kind == CLIENT)
        words[2] = (uint8_t) draw (chooser, CLIENTS - 1);
}

static void choose_other (struct chooser *chooser, struct action *action)
{
    static const uint8_t waits[] = { 0, 0, 0, 1, 1, 2, 3, 4 };
    const char *letters = action_rows[action->kind].words;

    for (size_t i = 0; letters[i] != '\0'; i++)
        switch (letters[i]) {
        case 'p':
            action->words[i] = choose_task (chooser);
            break;
        case 'q':
            action->words[i] = choose_task (chooser);
            break;
        case 'c':
            action->words[i] = (uint8_t) draw (chooser, CLIENTS - 1);
            break;
        case 'd':
            action->words[i] = choose_slot (chooser, &kernel.tasks[action->words[0]],
                                            action->kind == CLOSE || action->kind == PASS
                                                ? (enum manager_node[]) { MANAGER_CONTROL, MANAGER_UVM }[draw (chooser, 2)]
                                                : MANAGER_UVM);
            break;
        case 'e':
            action->words[i] = (uint8_t) (3 + draw (chooser, TASK_FILES - 3));
            break;
        case 'z':
            action->words[i] = (uint8_t) draw (chooser, SIZES);
            break;
        case 'f':
            action->words[i] = action->kind == WAIT ? waits[draw (chooser, 8)] : (uint8_t) draw (chooser, 4);
            break;
        case 't':
            action->words[i] = (uint8_t) draw (chooser, NEIGHBOUR);
            break;
        default:
            action->words[i] = (uint8_t) draw (chooser, RANGES);
        }
    if (action->kind == OPEN)
        action->words[1] = (uint8_t) (3 + draw (chooser, TASK_FILES - 3));
}

static void choose_action (struct chooser *chooser, struct action *action)
{
    if (strncmp (action_rows[action->kind].words, "pdc", 3) == 0)
        choose_call (chooser, action);
    else
        choose_other (chooser, action);
}

/* What a continued call becomes: another one with the same request. */
static void choose_race (struct chooser *chooser, struct step *step)
{
    static const uint8_t kinds[] = { MEMORY, MEMORY, MEMORY, GROUP, GROUP, CHANNEL, DEVICE, DEVICE, SUBDEVICE, CLIENT, COMPUTE };

    step->other.kind = step->action.kind == OS_MEMORY ? OS_MEMORY : kinds[draw (chooser, sizeof (kinds))];
    choose_action (chooser, &step->other);
    step->delay = (uint8_t) (1 + (chance (chooser, 40) ? draw (chooser, 6) : 0));
    /* By the same process; the descriptor is looked up again, and another file may be there by then. */
    memcpy (step->action.words, step->other.words, 2);
    if (chance (chooser, 30))
        step->action.words[D] = choose_slot (chooser, &kernel.tasks[step->action.words[P]],
                                             chance (chooser, 80) ? MANAGER_CONTROL : MANAGER_GPU);
}

void step_choose (struct chooser *chooser, unsigned number, struct step *step)
{
    static const uint8_t clients[] = { 0, 1, 9, 2 };

    *step = (struct step) { 0 };
    if (number < 2 || (number == 2 && chance (chooser, 50))) {
        uint8_t process = number < 2 ? (uint8_t) number : 3;

        step->action = (struct action) { START, { process, clients[process], (uint8_t) draw (chooser, 4) } };
        return;
    }
    step->action.kind = choose_kind (chooser);
    choose_action (chooser, &step->action);
    if (chooser->races != 0 && (step->action.kind == CLIENT || step->action.kind == DEVICE || step->action.kind == OS_MEMORY) &&
        draw (chooser, chooser->races) == 0)
        choose_race (chooser, step);
}
