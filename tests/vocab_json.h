/* vocab_json.h - vocabularies in the JSON form that tools/bpe_fixtures.py writes. */
#ifndef TESTS_VOCAB_JSON_H
#define TESTS_VOCAB_JSON_H

#include "text/jtree.h"
#include "text/vocab.h"

/* root: {"pieces": [...], "types": "33...", "merges": ["A B", ...]}. */
status vocab_from_json(const jtree *root, vocab **v, err *e);

#endif
