/* Mappings of a process that cannot be read twice in a row are charged as more than any GPU has, unless it is ending (guard/managed.c). */
#include "guard/managed.h"
#include "guard_model.h"
#include "tap.h"

#define MIB (UINT64_C (1) << 20)

static uint64_t charged_after_two_looks (bool is_ending)
{
    uint64_t charged;

    model.is_ending = is_ending;
    model.are_maps_unreadable = true;
    model_begin ();
    managed_charge (model.tenant, &model.process->managed, 4 * MIB, model.process->pid);
    managed_now (model.tenant);
    managed_now (model.tenant);
    charged = model.tenant->managed[0];
    managed_forget (model.tenant, model.process);
    model_end ();
    return charged;
}

int main (void)
{
    tap_ok (charged_after_two_looks (false) > UINT64_C (1) << 48, "a process that hides its mappings is above every quota");
    tap_ok (charged_after_two_looks (true) == 4 * MIB, "one that is ending is charged what was seen last");
    return tap_done ();
}
