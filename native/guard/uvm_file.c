/*
 * Whether a file of nvidia-uvm is shared by processes (UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE): then a managed range lives on when
 * the process that mapped it ends or executes something, until the last copy of the file is closed (uvm_vm_close_managed, uvm.c), of
 * which nothing tells. The driver is asked: initialised again with the flags that it has, a file answers success, and with others
 * an error, and changes nothing (uvm_api_initialize). One that is not initialised yet would be: it is asked something else first.
 */
#include "client_files.h"
#include "guard_private.h"
#include "process.h"
#include "tenant.h"
#include "uvm_file.h"
#include "wait.h"

#include "rm/nv_numbers.h"
#include "rm/uvm_ioctl.h"

#include <errno.h>
#include <sys/ioctl.h>

/* Of uvm_types.h: the other flags leave a range to its process. */
#define FLAGS_NONE 0u
#define FLAGS_NO_HMM 1u

static bool is_initialized (int file)
{
    UVM_PAGEABLE_MEM_ACCESS_PARAMS question = { 0 };

    return ioctl (file, UVM_PAGEABLE_MEM_ACCESS, &question) == 0 && question.rmStatus == NV_OK;
}

static bool has_flags (int file, uint64_t flags)
{
    UVM_INITIALIZE_PARAMS again = { .flags = flags };

    return ioctl (file, UVM_INITIALIZE, &again) == 0 && again.rmStatus == NV_OK;
}

bool uvm_file_mapped (struct tenant *tenant, struct process *process, int descriptor)
{
    enum rm_node node;
    int file = process_file (tenant, process, descriptor, &node);

    if (file < 0)
        return file != -EACCES;
    if (!tenant->shares_uvm && node == RM_NODE_UVM && is_initialized (file))
        tenant->shares_uvm = !has_flags (file, FLAGS_NONE) && !has_flags (file, FLAGS_NO_HMM);
    wait_close (tenant, process->pid, file);
    return true;
}
