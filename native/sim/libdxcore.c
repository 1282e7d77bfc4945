/*
 * The simulated libdxcore.so of a WSL2 machine: the graphics adapters that Windows shares, and the paths of their
 * drivers. Runs on the calling thread.
 *
 * Names, numbers and layouts are those of Microsoft's d3dkmthk.h and d3dukmdt.h; on Linux its WCHAR is wchar_t. In
 * addition to the machine's GPUs there are always two adapters that must not be recognised as NVIDIA's: one whose
 * driver is too old for WSL, and one of another vendor, whose store has none of the files.
 */
#include "machine.h"
#include "nvml.h" /* NVML_API: what is exported */

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <wchar.h>

typedef int32_t NTSTATUS;
#define STATUS_SUCCESS 0
#define STATUS_INVALID_PARAMETER ((NTSTATUS) 0xC000000Du)
#define STATUS_BUFFER_TOO_SMALL ((NTSTATUS) 0xC0000023u)
#define STATUS_UNSUCCESSFUL ((NTSTATUS) 0xC0000001u)

enum { KMTQAITYPE_DRIVERVERSION = 13, KMTQAITYPE_QUERYREGISTRY = 48 };
enum { D3DDDI_QUERYREGISTRY_DRIVERSTOREPATH = 2 };
enum { QUERYREGISTRY_SUCCESS = 0, QUERYREGISTRY_BUFFER_OVERFLOW = 1, QUERYREGISTRY_FAIL = 2 };
enum { KMT_DRIVERVERSION_WDDM_2_5 = 2500, KMT_DRIVERVERSION_WDDM_3_0 = 3000 };

typedef struct {
    uint32_t hAdapter;
    uint32_t AdapterLuid[2];
    uint32_t NumOfSources;
    uint32_t bPresentMoveRegionsPreferred;
} D3DKMT_ADAPTERINFO;

typedef struct {
    uint32_t NumAdapters;
    D3DKMT_ADAPTERINFO *pAdapters;
} D3DKMT_ENUMADAPTERS2;

typedef struct {
    uint64_t Filter; /* bit 0: compute-only adapters too */
    uint32_t NumAdapters;
    D3DKMT_ADAPTERINFO *pAdapters;
} D3DKMT_ENUMADAPTERS3;

typedef struct {
    uint32_t hAdapter;
    uint32_t Type;
    void *pPrivateDriverData;
    uint32_t PrivateDriverDataSize;
} D3DKMT_QUERYADAPTERINFO;

typedef struct {
    uint32_t QueryType;
    uint32_t QueryFlags;
    wchar_t ValueName[260];
    uint32_t ValueType;
    uint32_t PhysicalAdapterIndex;
    uint32_t OutputValueSize; /* bytes */
    uint32_t Status;
    union {
        uint64_t OutputQword;
        wchar_t OutputString[1];
    };
} D3DDDI_QUERYREGISTRY_INFO;

NVML_API NTSTATUS D3DKMTEnumAdapters2 (D3DKMT_ENUMADAPTERS2 *arguments);
NVML_API NTSTATUS D3DKMTEnumAdapters3 (D3DKMT_ENUMADAPTERS3 *arguments);
NVML_API NTSTATUS D3DKMTQueryAdapterInfo (const D3DKMT_QUERYADAPTERINFO *arguments);

#define FIRST_HANDLE 0x40000000u
/* Listed before the machine's GPUs: the adapter with the old driver, and the other vendor's. */
#define FOREIGN 2u
#define FOREIGN_STORE "/usr/lib/wsl/drivers/iigd_dch.inf_amd64_0000000000000000"

static struct machine machine;
static bool loaded;

static bool load (void)
{
    char problem[192];

    if (!loaded)
        loaded = machine_load (&machine, problem, sizeof (problem)) == MACHINE_FOUND && machine.store[0] != '\0';
    return loaded;
}

static NTSTATUS enumerate (uint32_t *count, D3DKMT_ADAPTERINFO *adapters)
{
    if (!load ())
        return STATUS_UNSUCCESSFUL;
    uint32_t there = FOREIGN + machine.gpu_count;
    if (adapters == NULL) {
        *count = there;
        return STATUS_SUCCESS;
    }
    if (*count < there)
        return STATUS_BUFFER_TOO_SMALL;
    *count = there;
    for (uint32_t i = 0; i < there; i++)
        adapters[i] = (D3DKMT_ADAPTERINFO) { .hAdapter = FIRST_HANDLE + i, .AdapterLuid = { 0x1000 + i, 0 } };
    return STATUS_SUCCESS;
}

NTSTATUS D3DKMTEnumAdapters2 (D3DKMT_ENUMADAPTERS2 *arguments)
{
    return arguments == NULL ? STATUS_INVALID_PARAMETER : enumerate (&arguments->NumAdapters, arguments->pAdapters);
}

NTSTATUS D3DKMTEnumAdapters3 (D3DKMT_ENUMADAPTERS3 *arguments)
{
    return arguments == NULL ? STATUS_INVALID_PARAMETER : enumerate (&arguments->NumAdapters, arguments->pAdapters);
}

static NTSTATUS registry (uint32_t adapter, D3DDDI_QUERYREGISTRY_INFO *info, size_t room)
{
    const char *path = adapter < FOREIGN ? FOREIGN_STORE : machine.store;
    size_t length = strlen (path) + 1;

    if (info->QueryType != D3DDDI_QUERYREGISTRY_DRIVERSTOREPATH) {
        info->Status = QUERYREGISTRY_FAIL;
        return STATUS_SUCCESS;
    }
    info->OutputValueSize = (uint32_t) (length * sizeof (wchar_t));
    if (room - offsetof (D3DDDI_QUERYREGISTRY_INFO, OutputString) < info->OutputValueSize) {
        info->Status = QUERYREGISTRY_BUFFER_OVERFLOW;
        return STATUS_SUCCESS;
    }
    for (size_t i = 0; i < length; i++)
        info->OutputString[i] = (wchar_t) (unsigned char) path[i];
    info->Status = QUERYREGISTRY_SUCCESS;
    return STATUS_SUCCESS;
}

NTSTATUS D3DKMTQueryAdapterInfo (const D3DKMT_QUERYADAPTERINFO *arguments)
{
    uint32_t version;

    if (arguments == NULL || arguments->pPrivateDriverData == NULL)
        return STATUS_INVALID_PARAMETER;
    if (!load ())
        return STATUS_UNSUCCESSFUL;
    uint32_t adapter = arguments->hAdapter - FIRST_HANDLE;
    if (adapter >= FOREIGN + machine.gpu_count)
        return STATUS_INVALID_PARAMETER;
    switch (arguments->Type) {
    case KMTQAITYPE_DRIVERVERSION:
        if (arguments->PrivateDriverDataSize < sizeof (version))
            return STATUS_BUFFER_TOO_SMALL;
        version = adapter == 0 ? KMT_DRIVERVERSION_WDDM_2_5 : KMT_DRIVERVERSION_WDDM_3_0;
        memcpy (arguments->pPrivateDriverData, &version, sizeof (version));
        return STATUS_SUCCESS;
    case KMTQAITYPE_QUERYREGISTRY:
        if (arguments->PrivateDriverDataSize < sizeof (D3DDDI_QUERYREGISTRY_INFO))
            return STATUS_BUFFER_TOO_SMALL;
        return registry (adapter, arguments->pPrivateDriverData, arguments->PrivateDriverDataSize);
    default:
        return STATUS_INVALID_PARAMETER;
    }
}
