/* Files of nvidia-uvm. Under the tenant's lock, in its thread. */
#ifndef NVC_GUARD_UVM_FILE_H
#define NVC_GUARD_UVM_FILE_H

#include <stdbool.h>

struct process;
struct tenant;

/* The process is about to map something on this descriptor. If ranges of it outlive their processes, those of the tenant are charged
 * from now on until it is gone. false: another container opened it. */
bool uvm_file_mapped (struct tenant *tenant, struct process *process, int descriptor);

#endif
