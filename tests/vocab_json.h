/* vocab_json.h - vocabularies in the JSON form that tools/bpe_fixtures.py and bytes_fixtures.py
 * write. */
#ifndef TESTS_VOCAB_JSON_H
#define TESTS_VOCAB_JSON_H

#include "text/jtree.h"
#include "text/vocab.h"

/* root: {"pieces": [...], "types": "33...", "merges": ["A B", ...]}; for families other than Gemma
 * 4 "arch", "model" and "pre" too, as in a model file. */
status vocab_from_json(const jtree *root, vocab **v, err *e);
/* Encodes the file's "cases": [[text, [id, ...]], ...], checks the ids, and that they give the text
 * again. For tests. */
void replay_vocab_cases(const char *path);

#endif
