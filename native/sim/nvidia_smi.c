/*
 * nvidia-smi of a simulated machine. Like the real one it finds libnvidia-ml.so.1 through the loader, so in a container
 * it shows whether the injected library, the loader cache and the device nodes fit together. "-L" prints the
 * lines of the real program on stdout, and that the machine is simulated on stderr.
 */
#include "nvml.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define LIBRARY "libnvidia-ml.so.1"
#define QUERY "--query-gpu="
/* The exit status of the real program: NVML's error number where it fits. */
enum { EXIT_OK = 0, EXIT_QUERY = 2, EXIT_NO_DEVICES = 6, EXIT_LIBRARY = 12, EXIT_OTHER = 255 };

static void *library;
static bool incomplete;

static void *symbol (const char *name)
{
    void *address = dlsym (library, name);

    if (address == NULL) {
        fprintf (stderr, "nvidia-smi: %s has no %s\n", LIBRARY, name);
        incomplete = true;
    }
    return address;
}

/* One variable a function, of the function's own type. */
#define FUNCTIONS(row)                                                                                                             \
    row (nvmlInit_v2) row (nvmlShutdown) row (nvmlErrorString) row (nvmlSystemGetDriverVersion)                                    \
        row (nvmlSystemGetCudaDriverVersion_v2) row (nvmlDeviceGetCount_v2) row (nvmlDeviceGetHandleByIndex_v2)                    \
            row (nvmlDeviceGetName) row (nvmlDeviceGetUUID) row (nvmlDeviceGetPciInfo_v3) row (nvmlDeviceGetMemoryInfo)            \
                row (nvmlDeviceGetMemoryInfo_v2) row (nvmlDeviceGetComputeRunningProcesses_v3) row (nvmlDeviceGetMigMode)          \
                    row (nvmlDeviceGetMaxMigDeviceCount) row (nvmlDeviceGetMigDeviceHandleByIndex) row (nvcSimMachineName)         \
                        row (nvcSimProblem)

#define DECLARE(name) __typeof__ (name) *name;
#define RESOLVE(name) api.name = (__typeof__ (name) *) symbol (#name);

static struct {
    FUNCTIONS (DECLARE)
} api;

static int failed (const char *what, nvmlReturn_t result)
{
    const char *why = api.nvcSimProblem ();

    if (result == NVML_ERROR_DRIVER_NOT_LOADED)
        puts ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
              "Make sure that the latest NVIDIA driver is installed and running.\n");
    else
        printf ("%s: %s\n", what, api.nvmlErrorString (result));
    if (why[0] != '\0')
        fprintf (stderr, "nvidia-smi (SIMULATED): %s\n", why);
    return (int) result < EXIT_OTHER ? (int) result : EXIT_OTHER;
}

static void print_migs (nvmlDevice_t gpu)
{
    unsigned int current = 0, pending = 0, count = 0;

    if (api.nvmlDeviceGetMigMode (gpu, &current, &pending) != NVML_SUCCESS || current != NVML_DEVICE_MIG_ENABLE ||
        api.nvmlDeviceGetMaxMigDeviceCount (gpu, &count) != NVML_SUCCESS)
        return;
    for (unsigned int i = 0; i < count; i++) {
        char name[160] = "", uuid[96] = "";
        nvmlDevice_t mig = NULL;
        if (api.nvmlDeviceGetMigDeviceHandleByIndex (gpu, i, &mig) != NVML_SUCCESS)
            continue;
        api.nvmlDeviceGetName (mig, name, sizeof (name));
        api.nvmlDeviceGetUUID (mig, uuid, sizeof (uuid));
        const char *profile = strstr (name, "MIG ");
        printf ("  MIG %-12sDevice %2u: (UUID: %s)\n", profile != NULL ? profile + 4 : name, i, uuid);
    }
}

static void print_line (unsigned int index, nvmlDevice_t gpu)
{
    char name[96] = "", uuid[96] = "";

    api.nvmlDeviceGetName (gpu, name, sizeof (name));
    api.nvmlDeviceGetUUID (gpu, uuid, sizeof (uuid));
    printf ("GPU %u: %s (UUID: %s)\n", index, name, uuid);
    print_migs (gpu);
}

static void print_row (unsigned int index, nvmlDevice_t gpu)
{
    char name[96] = "";
    nvmlPciInfo_t pci = { .busId = "" };
    nvmlMemory_t memory = { .total = 0 };

    api.nvmlDeviceGetName (gpu, name, sizeof (name));
    api.nvmlDeviceGetPciInfo_v3 (gpu, &pci);
    api.nvmlDeviceGetMemoryInfo (gpu, &memory);
    printf ("| %3u  %-28.28s  %-16.16s  %7lluMiB / %7lluMiB |\n", index, name, pci.busId, memory.used >> 20, memory.total >> 20);
}

#define MOST_PROCESSES 950

/* Lines for the processes of a GPU with a heading; nothing if there are none. */
static void print_processes (unsigned int index, nvmlDevice_t gpu)
{
    nvmlProcessInfo_t processes[MOST_PROCESSES];
    unsigned int count = MOST_PROCESSES;

    if (api.nvmlDeviceGetComputeRunningProcesses_v3 (gpu, &count, processes) != NVML_SUCCESS)
        return;
    for (unsigned int i = 0; i < count; i++) {
        char path[32], name[64] = "-";
        snprintf (path, sizeof (path), "/proc/%u/comm", processes[i].pid);
        FILE *file = fopen (path, "re");
        if (file != NULL && fgets (name, sizeof (name), file) != NULL)
            name[strcspn (name, "\n")] = '\0';
        if (file != NULL)
            fclose (file);
        printf ("| %3u  process %-10u  C  %-32.32s  %13lluMiB |\n", index, processes[i].pid, name,
                processes[i].usedGpuMemory >> 20);
    }
}

/* --query-gpu=FIELD,...: a line a GPU, as the real program prints it for these fields. */
struct format {
    bool header, units;
};

static const char *const fields[] = { "memory.total", "memory.used", "memory.free", "uuid", "name", "index" };
enum { FIELD_TOTAL, FIELD_USED, FIELD_FREE, FIELD_UUID, FIELD_NAME, FIELD_INDEX, FIELDS };
#define MOST_FIELDS 32

/* Fills `chosen`; returns the number of fields, or 0 with a message for an unknown one. */
static size_t parse_fields (char *text, int chosen[MOST_FIELDS])
{
    size_t count = 0;

    for (char *word = strtok (text, ","); word != NULL && count < MOST_FIELDS; word = strtok (NULL, ",")) {
        int field = 0;
        while (field < FIELDS && strcmp (fields[field], word) != 0)
            field++;
        if (field == FIELDS && strcmp (word, "gpu_uuid") == 0)
            field = FIELD_UUID;
        if (field == FIELDS) {
            printf ("Field \"%s\" is not a valid field to query.\n\n", word);
            return 0;
        }
        chosen[count++] = field;
    }
    return count;
}

static void print_field (int field, unsigned int index, nvmlDevice_t gpu, struct format format)
{
    nvmlMemory_v2_t memory = { .version = (unsigned int) sizeof (memory) | 2u << 24 };
    char text[96] = "";

    api.nvmlDeviceGetMemoryInfo_v2 (gpu, &memory);
    const unsigned long long bytes[] = { memory.total, memory.used, memory.free };
    if (field <= FIELD_FREE)
        printf ("%llu%s", bytes[field] >> 20, format.units ? " MiB" : "");
    else if (field == FIELD_INDEX)
        printf ("%u", index);
    else if ((field == FIELD_UUID ? api.nvmlDeviceGetUUID : api.nvmlDeviceGetName) (gpu, text, sizeof (text)) == NVML_SUCCESS)
        printf ("%s", text);
}

static int query (char *wanted, struct format format)
{
    int chosen[MOST_FIELDS];
    size_t count = parse_fields (wanted, chosen);
    unsigned int gpus = 0;

    if (count == 0)
        return EXIT_QUERY;
    nvmlReturn_t result = api.nvmlInit_v2 ();
    if (result == NVML_SUCCESS)
        result = api.nvmlDeviceGetCount_v2 (&gpus);
    if (result != NVML_SUCCESS)
        return failed ("Failed to initialize NVML", result);
    for (size_t i = 0; format.header && i < count; i++)
        printf ("%s%s%s", i > 0 ? ", " : "", fields[chosen[i]], chosen[i] <= FIELD_FREE && format.units ? " [MiB]" : "");
    if (format.header)
        putchar ('\n');
    for (unsigned int gpu = 0; gpu < gpus; gpu++) {
        nvmlDevice_t device = NULL;
        if (api.nvmlDeviceGetHandleByIndex_v2 (gpu, &device) != NVML_SUCCESS)
            continue;
        for (size_t i = 0; i < count; i++) {
            fputs (i > 0 ? ", " : "", stdout);
            print_field (chosen[i], gpu, device, format);
        }
        putchar ('\n');
    }
    api.nvmlShutdown ();
    return EXIT_OK;
}

static void print_header (void)
{
    char driver[80] = "";
    int cuda = 0;

    api.nvmlSystemGetDriverVersion (driver, sizeof (driver));
    api.nvmlSystemGetCudaDriverVersion_v2 (&cuda);
    printf ("| SIMULATED machine %-20.20s Driver %-12.12s CUDA %2d.%-9d |\n", api.nvcSimMachineName (), driver, cuda / 1000,
            cuda % 1000 / 10);
}

static const char rule[] = "+------------------------------------------------------------------------------+";

static int show (bool list)
{
    unsigned int count = 0;
    nvmlReturn_t result = api.nvmlInit_v2 ();

    if (result != NVML_SUCCESS)
        return failed ("Failed to initialize NVML", result);
    if (!list) {
        puts (rule);
        print_header ();
        puts (rule);
    } else {
        fprintf (stderr, "nvidia-smi: SIMULATED machine %s\n", api.nvcSimMachineName ());
    }
    result = api.nvmlDeviceGetCount_v2 (&count);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < count; i++) {
        nvmlDevice_t gpu = NULL;
        result = api.nvmlDeviceGetHandleByIndex_v2 (i, &gpu);
        if (result == NVML_SUCCESS)
            (list ? print_line : print_row) (i, gpu);
    }
    if (!list)
        puts (rule);
    for (unsigned int i = 0; !list && result == NVML_SUCCESS && i < count; i++) {
        nvmlDevice_t gpu = NULL;
        if (api.nvmlDeviceGetHandleByIndex_v2 (i, &gpu) == NVML_SUCCESS)
            print_processes (i, gpu);
    }
    if (result != NVML_SUCCESS)
        return failed ("Unable to list the GPUs", result);
    api.nvmlShutdown ();
    if (count > 0)
        return EXIT_OK;
    puts (list ? "No devices found." : "No devices were found");
    return list ? EXIT_OK : EXIT_NO_DEVICES;
}

int main (int argc, char **argv)
{
    bool list = argc == 2 && (strcmp (argv[1], "-L") == 0 || strcmp (argv[1], "--list-gpus") == 0);

    if (argc == 2 && (strcmp (argv[1], "-h") == 0 || strcmp (argv[1], "--help") == 0)) {
        puts ("nvidia-smi of a SIMULATED machine (nvc-py sim)\n\n"
              "    nvidia-smi       a table of the GPUs that this process can use\n"
              "    nvidia-smi -L    one line for each GPU and MIG device, as the real program prints it\n"
              "    nvidia-smi --query-gpu=FIELD,... --format=csv[,noheader][,nounits]\n"
              "                     memory.total, memory.used, memory.free, uuid, name, index");
        return EXIT_OK;
    }
    bool asks = argc == 3 && strncmp (argv[1], QUERY, strlen (QUERY)) == 0 &&
                strncmp (argv[2], "--format=csv", strlen ("--format=csv")) == 0;
    if (argc > 1 && !list && !asks) {
        printf ("ERROR: Option %s is not recognized. Please run 'nvidia-smi -h'.\n\n", argv[1]);
        return EXIT_OTHER;
    }
    library = dlopen (LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf (stderr, "NVIDIA-SMI couldn't find %s library in your system: %s\n", LIBRARY, dlerror ());
        return EXIT_LIBRARY;
    }
    FUNCTIONS (RESOLVE)
    if (incomplete)
        return EXIT_LIBRARY;
    if (!asks)
        return show (list);
    struct format format = { strstr (argv[2], "noheader") == NULL, strstr (argv[2], "nounits") == NULL };
    return query (argv[1] + strlen (QUERY), format);
}
