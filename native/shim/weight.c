/* Timeslices (weight.h). Pure; called by publish.c. nvc/share/outside.py computes the same. */
#include "weight.h"

uint32_t weight_timeslice (uint32_t weight, uint32_t lowered, uint32_t priority, uint32_t groups)
{
    uint32_t effective = weight ? weight : WEIGHT_DEFAULT;
    uint64_t slice;

    if (lowered && lowered < effective)
        effective = lowered;
    if (groups <= 1 && priority == PRIORITY_NORMAL && !weight && effective == WEIGHT_DEFAULT)
        return 0;
    slice = (uint64_t) effective * 2048;
    if (priority == PRIORITY_HIGH)
        slice *= 10;
    else if (priority == PRIORITY_LOW)
        slice /= 2;
    slice /= 10 * (uint64_t) (groups ? groups : 1);
    return slice < TIMESLICE_SHORTEST_US  ? TIMESLICE_SHORTEST_US
           : slice > TIMESLICE_LONGEST_US ? TIMESLICE_LONGEST_US
                                          : (uint32_t) slice;
}
