/* names.h - names of models and files: checks their spelling, compares them with what a user
 * typed, and chooses the file of a repository.
 *
 * Names come from users, hubs and directories. Nothing here touches the disk or the network. The
 * rules of choice are those of llama-server (-hf).
 */
#ifndef APPS_HUB_NAMES_H
#define APPS_HUB_NAMES_H

#include "base/err.h"

enum {
    REPO_MAX = 256,  /* bytes of OWNER/REPO, with its NUL */
    QUANT_MAX = 128, /* of a label */
    FILE_MAX = 1024, /* of a path in a repository */
    PARTS_MAX = 9999 /* files of a split set */
};

/* A name in parts. Fields that were not given are "". */
typedef struct name_parts {
    char owner[REPO_MAX], repo[REPO_MAX], quant[QUANT_MAX];
    char file[FILE_MAX];     /* of an address like HOST/OWNER/REPO/resolve/main/FILE */
    char revision[REPO_MAX]; /* the same */
} name_parts;

/* False: this cannot be a name. An address of a hub (https://HOST/OWNER/REPO..., hf.co/...) is one;
 * endpoint: the hub in use, whose host may stand there too; may be NULL. */
bool name_parse(const char *text, const char *endpoint, name_parts *n);
/* Does a model of OWNER/REPO with that label fit the name? Case and "-GGUF" are ignored. */
bool name_fits(const name_parts *n, const char *repo, const char *quant);
/* 0 for Q4_K_M, 1 for Q8_0, 2 for others: what is preferred when no quantisation is named. */
int quant_rank(const char *quant);

bool quant_valid(const char *text); /* "Q4_K_M", "MXFP4", in any case */

bool repo_valid(const char *repo); /* OWNER/REPO as the hub allows it */
/* A path that stays inside of its folder: no "..", no empty parts, no control characters. */
bool file_valid(const char *path);
bool revision_valid(const char *revision);
bool hex_valid(const char *text, size_t n); /* n digits, lower case */

/* *.gguf, and no projector, matrix, head (mtp-NAME) or part with impossible numbers. */
bool is_model_file(const char *path);
/* The file of a vision tower: "mmproj" is in its name. */
bool is_mmproj_file(const char *path);
/* Which of the paths is the tower that a model file takes: one of its own folder before those of
 * others; among these one with the model's name before one without any, before one with another's;
 * and among these BF16 before F16 before Q8_0 before F32. -1: none is a tower. */
int choose_mmproj(const char *const *paths, size_t n, const char *model);
/* Does a word of the name say that it is a drafter, or has a layer for drafts (MTP)? */
bool names_drafter(const char *path);
/* A model file that stands for its model: a whole one, or part 1 of a split set. */
bool is_first_file(const char *path);
/* The parts of "X-00002-of-00005.gguf": its number, their count and the length of "X". False: the
 * name is not one of a split set; the outputs keep their values. */
bool split_name(const char *path, int *no, int *count, size_t *n_stem);
/* Has the name the form of a part, with numbers of none: 0 of 0, 3 of 2, more than PARTS_MAX? */
bool split_broken(const char *path);
/* The label of a file: its quantisation ("Q4_K_M", "UD-Q4_K_XL"), else its name without ending. */
void quant_of(const char *path, char out[QUANT_MAX]);
/* The same, or where another model file of the list has that label, the name without ending. */
void quant_among(const char *path, const char *const *paths, size_t n, char out[QUANT_MAX]);

/* The file to open among the paths of a repository, or -1. tag: a label, a quantisation or NULL.
 * Files that a word of their name calls drafters (MTP, DFlash, EAGLE, draft) come after others. */
int choose_file(const char *const *paths, size_t n, const char *tag);
const char *base_name(const char *path);

#endif
