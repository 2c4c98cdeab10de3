/* model_test.c - limits that a model keeps while its file is bound. */
#include "model/model.h"
#include "tests/test.h"

TEST(a_model_with_too_many_tables_is_refused)
{
    model_table tables[MODEL_TABLES_MAX];
    model m = {.tables = tables, .file = {.path = "a model"}};
    const void *at[MODEL_TABLES_MAX + 1] = {NULL};
    err e = {0};
    for (int i = 0; i < MODEL_TABLES_MAX; i++)
        CHECK_OK(model_add_table(&m, &at[i], 4, &e), e);
    CHECK_STATUS(model_add_table(&m, &at[MODEL_TABLES_MAX], 4, &e), E_LIMIT);
    CHECK_EQ(m.n_tables, MODEL_TABLES_MAX);
}
