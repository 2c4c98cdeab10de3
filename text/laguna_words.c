/* laguna_words.c - the special pieces of Laguna's vocabulary at their ids, for made-up ones. The
 * pieces of the ids in between are not published in words; they are reserved here.
 */
#include "text/laguna.h"

#define C(piece)                                                                                   \
    {                                                                                              \
        piece, TOKEN_CONTROL                                                                       \
    }
#define U(piece)                                                                                   \
    {                                                                                              \
        piece, TOKEN_USER_DEFINED                                                                  \
    }
#define BETWEEN(piece)                                                                             \
    {                                                                                              \
        "\xE3\x80\x88|" piece "|\xE3\x80\x89", TOKEN_CONTROL                                       \
    }

static const special_piece special[] = {
    BETWEEN("RESERVED_0"),  BETWEEN("CODE_START"),  BETWEEN("EOS"),         BETWEEN("CODE_END"),
    BETWEEN("RESERVED_4"),  BETWEEN("RESERVED_5"),  BETWEEN("RESERVED_6"),  BETWEEN("RESERVED_7"),
    BETWEEN("RESERVED_8"),  BETWEEN("PAD"),         BETWEEN("RESERVED_10"), BETWEEN("RESERVED_11"),
    BETWEEN("MASK"),        BETWEEN("RESERVED_13"), BETWEEN("RESERVED_14"), BETWEEN("RESERVED_15"),
    BETWEEN("RESERVED_16"), BETWEEN("RESERVED_17"), U("<think>"),           U("</think>"),
    BETWEEN("RESERVED_20"), BETWEEN("RESERVED_21"), BETWEEN("RESERVED_22"), U("<assistant>"),
    C("</assistant>"),      U("<tool_call>"),       U("</tool_call>"),      {0}};

const made_words laguna_made[] = {
    {"laguna", "gpt2", "laguna", special, 0,
     "{# \xE3\x80\x88|EOS|\xE3\x80\x89 <assistant> <tool_response> <arg_key> #}"},
    {0}};
