/* table_file.h - a file of a family's tiny size in memory, made of the family's rows, whose keys
 * and tensors a test or a fuzz target changes before it is opened. */
#ifndef TESTS_TABLE_FILE_H
#define TESTS_TABLE_FILE_H

#include "model/shapes.h"

enum { TABLE_FILE_KEYS = 96, TABLE_FILE_TENSORS = 512 };

typedef struct table_file_tensor {
    char name[64];
    int32_t layer;
    tensor_role role;
    uint64_t ne[TENSOR_DIMS_MAX];
    uint32_t n_dims, type;
} table_file_tensor;

typedef struct table_file {
    model_shape *shape;
    gguf made; /* as the rows write it; owns the bytes of keys */
    const char *arch;
    /* The file as it was opened last: only its head and the factors of rotation differ from zero.
     */
    unsigned char *bytes;
    size_t head, ones, ones_end;
    int32_t n_keys, n_tensors, n_listed;
    gguf_value key[TABLE_FILE_KEYS];
    table_file_tensor tensor[TABLE_FILE_TENSORS],
        listed[TABLE_FILE_TENSORS]; /* as it is, and as made */
} table_file;

typedef char table_file_name[32];

/* The tiny sizes of all families of whole models: at most cap of them. Returns their number. */
int32_t table_file_sizes(table_file_name *name, int32_t cap);
/* Tensors are f32 zeros, and factors of rotation ones. False: the size is not there, or no file can
 * be written. */
bool table_file_make(table_file *f, const char *size);
void table_file_reset(table_file *f); /* as it was made */
void table_file_free(table_file *f);
/* NULL: the file has no such key. */
gguf_value *table_file_key(table_file *f, const char *key);
/* Opens it as a model, which is valid until the next call; the caller frees m, also after a
 * failure.
 */
struct model;
status table_file_bind(table_file *f, struct model *m, err *e);
/* Opens it as a model, and a tower's file as its audio tower too, and closes it. What is no GGUF
 * file is refused like any other. */
status table_file_open(table_file *f, err *e);

#endif
