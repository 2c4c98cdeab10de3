/* fuzz_table.c - files of tiny sizes of every family, with chosen faults in keys and tensors.
 *
 *     size | { fault key-or-tensor value:16 }
 *
 * The file is opened, or refused with a sentence.
 */
#include "fuzz/fuzz.h"
#include "tests/table_file.h"

#include <string.h>

enum { FAULTS_MAX = 12, SIZES_MAX = 32 };

static void change_key(table_file *f, uint8_t fault, uint8_t which, uint16_t value,
                       unsigned char bytes[8])
{
    static const unsigned char text[] = {4, 0, 0, 0, 0, 0, 0, 0, 'y', 'a', 'r', 'n'};
    static const unsigned char zeros[4 * 4096];
    gguf_value *v = &f->key[which % f->n_keys];
    int64_t x = (int16_t)value;
    double real = x / 16.0;
    switch (fault % 6) {
    case 0:
        *v = f->key[--f->n_keys];
        break;
    case 1: /* another number */
        x = value & 0x8000 ? (int64_t)1 << (value & 62) : x;
        memcpy(bytes, &x, sizeof x);
        *v =
            (gguf_value){.key = v->key, .kind = GGUF_I64, .count = 1, .bytes = bytes, .n_bytes = 8};
        break;
    case 2:
        memcpy(bytes, &real, sizeof real);
        *v =
            (gguf_value){.key = v->key, .kind = GGUF_F64, .count = 1, .bytes = bytes, .n_bytes = 8};
        break;
    case 3:
        *v = (gguf_value){
            .key = v->key, .kind = GGUF_STRING, .count = 1, .bytes = text, .n_bytes = sizeof text};
        break;
    case 4: /* a list */
        *v = (gguf_value){.key = v->key,
                          .kind = GGUF_ARRAY,
                          .item = GGUF_U32,
                          .count = value % 4096,
                          .bytes = zeros,
                          .n_bytes = 4 * (uint64_t)(value % 4096)};
        break;
    default: /* the value of another key, or the key twice */
        if (value & 1 && f->n_keys < TABLE_FILE_KEYS)
            f->key[f->n_keys++] = *v;
        else
            v->key = f->key[value % f->n_keys].key;
    }
}

static void change_tensor(table_file *f, uint8_t fault, uint8_t which, uint16_t value)
{
    table_file_tensor *t = &f->tensor[(which + (value & 0x100)) % f->n_tensors];
    switch (fault % 7) {
    case 0:
        *t = f->tensor[--f->n_tensors];
        break;
    case 1:
    case 2:
    case 3:
        t->ne[fault % 7 - 1] = value;
        break;
    case 4:
        t->type = value % 48;
        break;
    case 5:
        t->name[value % (sizeof t->name - 1)] = (char)(value >> 8);
        break;
    default:
        if (value & 1 && f->n_tensors < TABLE_FILE_TENSORS)
            f->tensor[f->n_tensors++] = *t;
        else if (!strncmp(t->name, "blk.", 4))
            t->name[4] = (char)('0' + value % 10);
    }
}

FUZZ(table)
{
    static table_file file[SIZES_MAX];
    static table_file_name name[SIZES_MAX];
    static int32_t n_sizes;
    unsigned char bytes[FAULTS_MAX][8];
    err e = {0};
    if (n < 1)
        return;
    n_sizes = n_sizes ? n_sizes : table_file_sizes(name, SIZES_MAX);
    table_file *f = &file[data[0] % n_sizes];
    bool made = f->shape || table_file_make(f, name[data[0] % n_sizes]);
    fuzz_check(made, "no file of a tiny size");
    table_file_reset(f);
    for (size_t i = 1, k = 0; made && i + 4 <= n && k < FAULTS_MAX; i += 4, k++) {
        uint16_t value = (uint16_t)(data[i + 2] | data[i + 3] << 8);
        if (!f->n_keys || !f->n_tensors)
            break;
        if (data[i] & 1)
            change_tensor(f, data[i] >> 1, data[i + 1], value);
        else
            change_key(f, data[i] >> 1, data[i + 1], value, bytes[k]);
    }
    status st = table_file_open(f, &e);
    fuzz_check(!st == !e.status && (!st || e.text[0]), "a failure without a sentence");
}
