/* cuda_none.c - in a build without CUDA, what stands where the CUDA device would. `make cuda` puts
 * backend/cuda/ in its place. */
#include "backend/ops.h"

status device_open_cuda(device **d, const cuda_options *opt, err *e)
{
    (void)opt;
    *d = NULL;
    return err_set(e, E_UNSUPPORTED,
                   "this carat was built without CUDA: `make cuda` builds one with it");
}
