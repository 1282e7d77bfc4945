/* NVML's life cycle, handles and buffers, on a machine given by the environment variable's file. */
#include "nvml_state.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT                                                                                                                       \
    "nvc-sim-machine=1\nname=t\ndriver=580.1\nnvml=13.580.1\ncuda=13000\nnodes=0\ngpu=0\nuuid=GPU-1\nmodel=Test\n"                 \
    "node=/dev/nvidia0\nminor=3\nbrand=14\ndomain=1\nbus=6\ndevice=2\npci_id=1\npci_subsystem=2\narch_major=9\n"                   \
    "arch_minor=0\nmig_capable=0\nmig_enabled=0\nmemory=1024\nmemory_reserved=24\nend=1\n"

static bool machine_file (char *path, const char *text)
{
    int fd = mkstemp (path);
    bool good = fd >= 0 && write (fd, text, strlen (text)) == (ssize_t) strlen (text);

    if (fd >= 0)
        close (fd);
    return good && setenv (MACHINE_ENVIRONMENT, path, 1) == 0;
}

static void before_init (void)
{
    nvmlDevice_t device = NULL;
    unsigned int count = 0;

    tap_ok (nvmlDeviceGetCount_v2 (&count) == NVML_ERROR_UNINITIALIZED, "a call before nvmlInit is refused");
    tap_ok (nvmlDeviceGetName ((nvmlDevice_t) &device, NULL, 0) == NVML_ERROR_UNINITIALIZED, "whatever its handle is");
    tap_ok (nvmlShutdown () == NVML_ERROR_UNINITIALIZED, "nvmlShutdown before nvmlInit is refused");
}

static void handles (void)
{
    char bytes[64] = "", name[96];
    nvmlDevice_t device = NULL;
    unsigned int number = 0;

    tap_ok (nvmlInit_v2 () == NVML_SUCCESS && nvmlInitWithFlags (0) == NVML_SUCCESS, "nvmlInit counts");
    tap_ok (nvmlDeviceGetHandleByIndex_v2 (0, &device) == NVML_SUCCESS, "GPU 0 has a handle");
    tap_ok (nvmlDeviceGetHandleByIndex_v2 (1, &device) == NVML_ERROR_INVALID_ARGUMENT, "GPU 1 has none");
    tap_ok (nvmlDeviceGetMinorNumber (device, &number) == NVML_SUCCESS && number == 3, "minor number");
    tap_ok (nvmlDeviceGetName (NULL, name, sizeof (name)) == NVML_ERROR_INVALID_ARGUMENT, "NULL is no handle");
    tap_ok (nvmlDeviceGetName ((nvmlDevice_t) (void *) bytes, name, sizeof (name)) == NVML_ERROR_INVALID_ARGUMENT,
            "a foreign pointer is no handle");
    tap_ok (nvmlDeviceGetName ((nvmlDevice_t) (void *) ((char *) device + 1), name, sizeof (name)) == NVML_ERROR_INVALID_ARGUMENT,
            "a pointer into the middle of a handle is no handle");
    tap_ok (nvmlDeviceGetName (device + 1, name, sizeof (name)) == NVML_ERROR_INVALID_ARGUMENT,
            "the place behind the last handle is no handle");
}

static void buffers (void)
{
    char small[4];
    nvmlDevice_t device = NULL;
    nvmlMemory_v2_t memory = { .version = 1 };
    struct {
        nvmlPciInfo_v1_t pci;
        unsigned char guard[8];
    } old;

    memset (&old, 0xaa, sizeof (old));
    nvmlDeviceGetHandleByUUID ("GPU-1", &device);
    tap_ok (nvmlDeviceGetName (device, small, sizeof (small)) == NVML_ERROR_INSUFFICIENT_SIZE, "a short buffer");
    tap_ok (nvmlDeviceGetName (device, NULL, 96) == NVML_ERROR_INVALID_ARGUMENT, "no buffer");
    tap_ok (nvmlDeviceGetMemoryInfo_v2 (device, &memory) == NVML_ERROR_FUNCTION_NOT_FOUND, "wrong version");
    tap_ok (nvmlDeviceGetPciInfo (device, &old.pci) == NVML_SUCCESS && old.pci.domain == 1 && old.pci.bus == 6 &&
                old.pci.device == 2 && old.guard[0] == 0xaa,
            "the oldest PCI structure is not overrun");
    tap_ok (nvmlDeviceGetMigMode (device, &old.pci.bus, &old.pci.bus) == NVML_ERROR_NOT_SUPPORTED, "no MIG here");
}

static void after_shutdown (void)
{
    unsigned int count = 0;

    tap_ok (nvmlShutdown () == NVML_SUCCESS && nvmlDeviceGetCount_v2 (&count) == NVML_SUCCESS && count == 1,
            "the first of two shutdowns keeps the library up");
    tap_ok (nvmlShutdown () == NVML_SUCCESS && nvmlDeviceGetCount_v2 (&count) == NVML_ERROR_UNINITIALIZED, "the second ends it");
    tap_ok (nvmlInitWithFlags (64) == NVML_SUCCESS && nvmlShutdown () == NVML_SUCCESS, "any flag is taken");
}

int main (void)
{
    char path[] = "/tmp/nvc-test-machine.XXXXXX", bad[] = "/tmp/nvc-test-machine.XXXXXX";

    before_init ();
    tap_ok (machine_file (path, TEXT), "a description is written");
    handles ();
    buffers ();
    after_shutdown ();
    tap_ok (machine_file (bad, "nvc-sim-machine=1\n") && nvmlInit_v2 () == NVML_ERROR_UNKNOWN &&
                strstr (nvcSimProblem (), "cut off") != NULL,
            "a malformed description is an error that says why");
    unlink (path);
    tap_ok (setenv (MACHINE_ENVIRONMENT, path, 1) == 0 && nvmlInit_v2 () == NVML_ERROR_UNKNOWN,
            "a file that is named and missing is an error");
    unlink (bad);
    return tap_done ();
}
