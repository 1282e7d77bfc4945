/*
 * Random sequences of what hostile programs can do (sequence.h), and what was found in them.
 *
 *     guard_sequences run COUNT SEED [WORDS [KINDS]]   ends with the first finding, as a short sequence, and 1
 *     guard_sequences count COUNT SEED [WORDS [KINDS]] all findings, each sequence shortened and named by its cause
 *     guard_sequences print COUNT SEED [WORDS [KINDS]] the steps of sequences, each before an empty line
 *     guard_sequences replay FILE [WORDS]              "-": standard input; 1 if anything is found
 *
 * WORDS: findings that do not count; KINDS: of steps that do not occur; both with commas. The same numbers give the same sequences.
 */
#include "sequence.h"

#include <stdlib.h>
#include <string.h>

#define LENGTH 50u
#define CAUSES 24u
#define EXAMPLES 3u

static char text[1024];
static const char *without_kinds;

static void begin (uint64_t seed)
{
    struct step neighbour = { .action = { START, { NEIGHBOUR, CLIENTS - 1, 0 } } };

    world_begin (seed);
    step_run (&neighbour);
    for (unsigned i = 0; i < TENANTS; i++)
        world_plan (i);
}

static bool is_traced;

/* Of each tenant: what is charged and what it holds. */
static void trace (const struct step *step)
{
    for (unsigned i = 0; i < TENANTS - 1; i++)
        printf ("%8llu/%llu KiB ", (unsigned long long) world_charged (i) >> 10, (unsigned long long) check_held (i) >> 10);
    printf (" status %#x  ", (unsigned) world.last_status);
    step_print (step, stdout);
    for (unsigned i = 0; i < TENANTS - 1; i++)
        world_print (i);
    printf ("\n");
}

/* What is found while it runs, up to the first of `wanted`; the rest of the sequence is cut off then. */
static unsigned replay (struct sequence *sequence, uint64_t seed, unsigned wanted)
{
    unsigned found = 0;

    begin (seed);
    for (unsigned i = 0; i < sequence->count && (found & wanted) == 0; i++) {
        step_run (&sequence->steps[i]);
        found |= sequence_check (text, sizeof (text));
        if (is_traced)
            trace (&sequence->steps[i]);
        if ((found & wanted) != 0)
            sequence->count = i + 1;
    }
    world_end ();
    return found;
}

static void without (const struct sequence *from, unsigned at, unsigned count, struct sequence *to)
{
    to->count = from->count - count;
    memcpy (to->steps, from->steps, at * sizeof (struct step));
    memcpy (to->steps + at, from->steps + at + count, (from->count - at - count) * sizeof (struct step));
}

static struct sequence tried;

static bool take_if_found (struct sequence *sequence, uint64_t seed, unsigned wanted)
{
    if ((replay (&tried, seed, wanted) & wanted) == 0)
        return false;
    *sequence = tried;
    return true;
}

/* Calls that become other ones: not at all, or at once, as long as the same is found. */
static bool simplify (struct sequence *sequence, uint64_t seed, unsigned wanted)
{
    bool is_simpler = false;

    for (unsigned i = 0; i < sequence->count; i++)
        for (uint8_t delay = 0; delay <= 1 && i < sequence->count && sequence->steps[i].delay > delay; delay++) {
            tried = *sequence;
            tried.steps[i].delay = delay;
            is_simpler |= take_if_found (sequence, seed, wanted);
        }
    return is_simpler;
}

/* Takes steps out as long as the same is found. */
static void shorten (struct sequence *sequence, uint64_t seed, unsigned wanted)
{
    bool is_shorter = true;

    while (is_shorter) {
        is_shorter = simplify (sequence, seed, wanted);
        for (unsigned size = sequence->count / 2; size > 0; size /= 2)
            for (unsigned at = 0; at + size <= sequence->count;) {
                without (sequence, at, size, &tried);
                if (take_if_found (sequence, seed, wanted))
                    is_shorter = true;
                else
                    at += size;
            }
    }
    (void) replay (sequence, seed, wanted); /* for its text */
}

/* A new sequence; what is found in it is added to `found`, with the sequence up to each one's first step. */
static unsigned run (uint64_t seed, unsigned wanted, bool all, struct sequence *sequence, unsigned ends[FINDINGS])
{
    struct chooser chooser;
    unsigned found = 0;

    chooser_begin (&chooser, seed, without_kinds);
    begin (seed);
    for (sequence->count = 0; sequence->count < LENGTH;) {
        struct step *step = &sequence->steps[sequence->count];
        unsigned new;

        /* At the end all that only time shows. */
        if (sequence->count == LENGTH - 1)
            *step = (struct step) { .action = { WAIT, { 4 } } };
        else
            step_choose (&chooser, sequence->count, step);
        step_run (step);
        sequence->count++;
        new = sequence_check (text, sizeof (text)) & wanted & ~found;
        for (unsigned i = 0; i < FINDINGS; i++)
            if ((new >> i & 1) != 0)
                ends[i] = sequence->count;
        found |= new;
        if (found != 0 && !all)
            break;
    }
    world_end ();
    return found;
}

static void print (const struct sequence *sequence)
{
    for (unsigned i = 0; i < sequence->count; i++)
        step_print (&sequence->steps[i], stdout);
}

static unsigned wanted_of (const char *words)
{
    unsigned wanted = FOUND_ALL;

    for (unsigned i = 0; i < FINDINGS; i++)
        if (is_listed (words, finding_words[i]))
            wanted &= ~(1u << i);
    return wanted;
}

static int run_many (unsigned long count, uint64_t seed, unsigned wanted)
{
    static struct sequence sequence;
    unsigned ends[FINDINGS];

    for (unsigned long i = 0; i < count; i++) {
        unsigned found = run (seed + i, wanted, false, &sequence, ends);

        if (found == 0)
            continue;
        shorten (&sequence, seed + i, found & -found);
        printf ("# sequence %llu\n", (unsigned long long) (seed + i));
        for (char *line = strtok (text, "\n"); line != NULL; line = strtok (NULL, "\n"))
            printf ("# %s\n", line);
        print (&sequence);
        return 1;
    }
    printf ("%lu sequences, nothing found\n", count);
    return 0;
}

static bool has (const struct sequence *sequence, bool is_raced, unsigned kind)
{
    for (unsigned i = 0; i < sequence->count; i++) {
        const struct step *step = &sequence->steps[i];

        if (is_raced ? step->delay != 0 && step->other.kind == kind : step->action.kind == kind)
            return true;
    }
    return false;
}

static unsigned tenants_in (const struct sequence *sequence)
{
    unsigned seen = 0;

    for (unsigned i = 0; i < sequence->count; i++)
        if (sequence->steps[i].action.kind == START)
            seen |= sequence->steps[i].action.words[0] == 1 ? 2 : 1;
    return seen;
}

/* Findings that have one cause. */
static const char *const single[FINDINGS] = { [2] = "M8", [3] = "M5", [4] = "M6", [5] = "M7", [7] = "C5", [8] = "C6" };

/* The number, in the list of ways round a share, of what a short sequence is an example of. */
static const char *cause_of (const struct sequence *sequence, unsigned finding)
{
    if (single[finding] != NULL)
        return single[finding];
    if (has (sequence, false, OBJECT))
        return "C4";
    if (finding <= 1)
        return has (sequence, true, MEMORY)    ? "M2"
               : has (sequence, false, DEVICE) ? "M1"
               : has (sequence, false, BATCH)  ? "M4"
               : tenants_in (sequence) == 3    ? "M3"
                                               : "other-memory";
    if (has (sequence, true, DEVICE))
        return "C3";
    if (has (sequence, true, GROUP) || has (sequence, true, CHANNEL) || has (sequence, true, SUBDEVICE) ||
        has (sequence, true, COMPUTE))
        return "C2";
    return has (sequence, false, DUPLICATE) ? "C7"
           : has (sequence, false, DEVICE)  ? "C1"
           : finding == 6                   ? "other-compute"
                                            : finding_words[finding];
}

static int count_all (unsigned long count, uint64_t seed, unsigned wanted)
{
    static struct sequence sequence, shorter, examples[CAUSES];
    static unsigned counts[CAUSES];
    static const char *causes[CAUSES];
    uint64_t seeds[CAUSES] = { 0 };
    unsigned bits[CAUSES] = { 0 }, ends[FINDINGS] = { 0 }, with_any = 0, used = 0;

    for (unsigned long i = 0; i < count; i++) {
        unsigned found = run (seed + i, wanted, true, &sequence, ends), seen = 0;

        with_any += found != 0;
        for (unsigned bit = 0; bit < FINDINGS; bit++) {
            const char *cause;
            unsigned at = 0;

            if ((found >> bit & 1) == 0)
                continue;
            shorter = sequence;
            shorter.count = ends[bit];
            /* What has one cause alone is shortened at the end. */
            if (single[bit] == NULL)
                shorten (&shorter, seed + i, 1u << bit);
            cause = cause_of (&shorter, bit);
            while (at < used && strcmp (causes[at], cause) != 0)
                at++;
            if (at == CAUSES)
                continue;
            used += at == used;
            causes[at] = cause;
            counts[at] += (seen >> at & 1) == 0;
            seen |= 1u << at;
            if (examples[at].count != 0 && shorter.count >= examples[at].count)
                continue;
            examples[at] = shorter;
            seeds[at] = seed + i;
            bits[at] = bit;
        }
    }
    printf ("%lu sequences, something in %u\n", count, with_any);
    for (unsigned i = 0; i < used; i++) {
        shorten (&examples[i], seeds[i], 1u << bits[i]);
        printf ("\n%s: in %u sequences; the shortest:\n", causes[i], counts[i]);
        print (&examples[i]);
    }
    return 0;
}

static int print_all (unsigned long count, uint64_t seed, unsigned wanted)
{
    static struct sequence sequence;
    unsigned ends[FINDINGS];

    for (unsigned long i = 0; i < count; i++) {
        (void) run (seed + i, wanted, true, &sequence, ends);
        printf ("# sequence %llu\n", (unsigned long long) (seed + i));
        print (&sequence);
        printf ("\n");
    }
    return 0;
}

static int replay_file (const char *path, unsigned wanted)
{
    static struct sequence sequence;
    FILE *from = strcmp (path, "-") == 0 ? stdin : fopen (path, "r");
    char line[256];
    unsigned found;

    while (from != NULL && fgets (line, sizeof (line), from) != NULL && sequence.count < STEPS_MAX) {
        if (line[0] == '#' || line[0] == '\n')
            continue;
        if (!step_parse (line, &sequence.steps[sequence.count])) {
            fprintf (stderr, "no step: %s", line);
            return 2;
        }
        sequence.count++;
    }
    if (from == NULL)
        return 2;
    is_traced = true;
    found = replay (&sequence, 1, wanted) & wanted;
    printf ("%s", found != 0 ? text : "nothing found\n");
    return found != 0;
}

int main (int argc, char **argv)
{
    without_kinds = argc > 5 ? argv[5] : NULL;
    if (argc >= 4 && strcmp (argv[1], "run") == 0)
        return run_many (strtoul (argv[2], NULL, 10), strtoull (argv[3], NULL, 10), wanted_of (argc > 4 ? argv[4] : NULL));
    if (argc >= 4 && strcmp (argv[1], "count") == 0)
        return count_all (strtoul (argv[2], NULL, 10), strtoull (argv[3], NULL, 10), wanted_of (argc > 4 ? argv[4] : NULL));
    if (argc >= 4 && strcmp (argv[1], "print") == 0)
        return print_all (strtoul (argv[2], NULL, 10), strtoull (argv[3], NULL, 10), wanted_of (argc > 4 ? argv[4] : NULL));
    if (argc >= 3 && strcmp (argv[1], "replay") == 0)
        return replay_file (argv[2], wanted_of (argc > 3 ? argv[3] : NULL));
    fprintf (stderr, "usage: guard_sequences run|count|print COUNT SEED [WORDS [KINDS]] | replay FILE [WORDS]\n");
    return 2;
}
