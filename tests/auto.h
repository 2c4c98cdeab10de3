/* auto.h - variables of tests that release themselves where their block ends.
 *
 *     AUTO(str_free) str text = {0};
 *     AUTO_MODEL *m = toy_model_open(NULL, NULL);
 *     AUTO_MEM float *row = mem_alloc(n * sizeof *row);
 *
 * AUTO's function takes the address of the variable; that of AUTO_PTR takes the pointer that the
 * variable holds then. Several variables are released in the reverse order of their declarations. A
 * test that fails ends its process and releases nothing.
 */
#ifndef TESTS_AUTO_H
#define TESTS_AUTO_H

#include "base/mem.h"
#include "carat.h"

#include <stdlib.h>
#include <string.h>

#define AUTO(release) __attribute__((cleanup(release)))
#define AUTO_PTR(release) AUTO(release##_at)
#define AUTO_MEM AUTO_PTR(mem_free)
#define AUTO_MODEL AUTO_PTR(carat_model_close) carat_model
#define AUTO_SESSION AUTO_PTR(carat_session_close) carat_session
#define AUTO_BATCH AUTO_PTR(carat_batch_close) carat_batch

/* Makes the function of AUTO_PTR out of one that releases a type *. */
#define RELEASED_AT(release, type)                                                                 \
    static inline void release##_at(type **p)                                                      \
    {                                                                                              \
        release(*p);                                                                               \
    }
RELEASED_AT(carat_model_close, carat_model)
RELEASED_AT(carat_session_close, carat_session)
RELEASED_AT(carat_batch_close, carat_batch)
RELEASED_AT(carat_snapshot_free, carat_snapshot)
RELEASED_AT(carat_media_free, carat_media)

/* Memory of any type: at is the address of the pointer to it. */
static inline void mem_free_at(void *at)
{
    void *p;
    memcpy(&p, at, sizeof p);
    mem_free(p);
}

static inline void free_at(void *at)
{
    void *p;
    memcpy(&p, at, sizeof p);
    free(p);
}

#endif
