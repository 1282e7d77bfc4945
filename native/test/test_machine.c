/* The parser of machine descriptions: valid ones, invalid ones and their messages. */
#include "machine.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>

#define HEAD "nvc-sim-machine=1\nname=t\ndriver=1.2\nnvml=12.1.2\ncuda=13000\nnodes=0\n"
#define GPU                                                                                                                        \
    "uuid=GPU-1\nmodel=Test\nnode=/dev/nvidia0\nminor=3\nbrand=14\ndomain=0\nbus=6\ndevice=0\npci_id=1\n"                          \
    "pci_subsystem=2\narch_major=9\narch_minor=0\nmig_capable=1\nmig_enabled=1\nmemory=1024\nmemory_reserved=24\n"
#define MIG "uuid=MIG-1\nprofile=1g\ngi_access=/a\nci_access=/b\ngi=7\nci=0\ngi_slices=1\nci_slices=1\nmemory=512\n"

static struct machine machine;

static bool good (const char *text)
{
    char problem[128];
    /* An exact heap copy, so that the address sanitizer detects a read past the end. */
    size_t size = strlen (text);
    char *copy = malloc (size + 1);
    bool result;

    if (copy == NULL)
        return false;
    memcpy (copy, text, size);
    char *exact = realloc (copy, size > 0 ? size : 1);
    result = exact != NULL && machine_parse (exact, size, &machine, problem, sizeof (problem));
    free (exact);
    return result;
}

static void refused (const char *text, const char *words, const char *claim)
{
    char problem[128] = "";

    tap_ok (!machine_parse (text, strlen (text), &machine, problem, sizeof (problem)) && strstr (problem, words) != NULL &&
                machine.gpu_count == 0,
            claim);
    if (strstr (problem, words) == NULL)
        printf ("# said: %s\n", problem);
}

static void takes (void)
{
    tap_ok (good (HEAD "end=0\n"), "a machine without a GPU");
    tap_ok (good (HEAD "gpu=0\n" GPU "end=1\n") && machine.gpus[0].minor == 3 && machine.gpus[0].memory == 1024,
            "a GPU and its numbers");
    tap_ok (good (HEAD "gpu=0\n" GPU "mig=0\n" MIG "end=1\n") && machine.gpus[0].mig_count == 1 &&
                strcmp (machine.gpus[0].migs[0].profile, "1g") == 0,
            "a MIG device");
    tap_ok (good (HEAD "fault=nvmlInit_v2 error 18\nfault=f hang\nfault=g crash\nfault=h slow 20\nend=0\n") &&
                machine.fault_count == 4 && machine.faults[0].value == 18 && machine.faults[3].kind == FAULT_SLOW,
            "the four kinds of fault");
    tap_ok (good (HEAD "end=0\n") && machine.pageable == PAGEABLE_OFF && good (HEAD "pageable=off\nend=0\n") &&
                machine.pageable == PAGEABLE_OFF && good (HEAD "pageable=hmm\nend=0\n") && machine.pageable == PAGEABLE_HMM &&
                good (HEAD "pageable=ats\nend=0\n") && machine.pageable == PAGEABLE_ATS,
            "ordinary memory in video memory: not, by HMM, by ATS");
}

static void refuses (void)
{
    refused ("", "cut off", "an empty text is refused");
    refused (HEAD, "cut off", "a text without its end is refused");
    refused (HEAD "end=0", "cut off", "a last line without a newline is refused");
    refused ("hello=1\n", "not a machine", "another kind of file is refused");
    refused ("nvc-sim-machine=2\nend=0\n", "version", "an unknown version is refused");
    refused (HEAD "end=1\n", "number of GPUs", "a wrong count is refused");
    refused (HEAD "end=0\nmore=1\n", "after the end", "text after the end is refused");
    refused (HEAD "colour=1\nend=0\n", "unknown key", "an unknown key is refused");
    refused (HEAD "cuda=1\nend=0\n", "twice", "a key given twice is refused");
    refused (HEAD "pageable=hm\nend=0\n", "one of", "another word for ordinary memory is refused");
    refused (HEAD "minor=1\nend=0\n", "unknown key", "a GPU's key outside a GPU is refused");
    refused (HEAD "mig=0\nend=0\n", "follow its GPU", "a MIG device without a GPU is refused");
    refused (HEAD "gpu=0\nend=1\n", "missing", "a GPU without its keys is refused");
    refused (HEAD "gpu=1\nend=1\n", "numbered", "a GPU out of order is refused");
    refused (HEAD "gpu=99999999999999999999999\nend=1\n", "number", "a number of 23 digits is refused");
    refused (HEAD "fault=f\nend=0\n", "fault", "a fault without a kind is refused");
    refused (HEAD "fault=f hang 3\nend=0\n", "no value", "a hang with a value is refused");
    refused (HEAD "fault=f error\nend=0\n", "number", "an error without a number is refused");
    refused (HEAD "fault= hang\nend=0\n", "empty", "a fault without a function is refused");
    refused ("nvc-sim-machine=1\nname=\nend=0\n", "empty", "an empty text value is refused");
    refused ("nvc-sim-machine=1\nname=a\tb\nend=0\n", "printable", "a control character is refused");
    refused ("nvc-sim-machine=1\ncuda=4294967296\nend=0\n", "too large", "a number over 32 bits is refused");
    refused ("nvc-sim-machine=1\nnodes=2\nend=0\n", "too large", "a flag that is 2 is refused");
    refused ("nvc-sim-machine=1\ncuda=-1\nend=0\n", "decimal", "a negative number is refused");
    refused ("nvc-sim-machine=1\nname\n", "key=value", "a line without = is refused");
}

static void every_prefix_is_refused (void)
{
    static const char whole[] = HEAD "gpu=0\n" GPU "mig=0\n" MIG "fault=f slow 2\nend=1\n";
    char problem[128];
    bool all = good (whole);

    for (size_t size = 0; size + 1 < sizeof (whole) - 1; size++)
        all = all && !machine_parse (whole, size, &machine, problem, sizeof (problem));
    tap_ok (all, "a description cut off at any byte is refused");
}

int main (void)
{
    takes ();
    refuses ();
    every_prefix_is_refused ();
    return tap_done ();
}
