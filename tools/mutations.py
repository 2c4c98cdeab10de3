"""Mistakes for mutate.py: one text of a source file and another in its place.

A mistake that is made in a kernel is made twice: in the plain definition (ref.c, recur_ref.c) and in the
kernels of instruction sets, as two entries.
"""
from typing import NamedTuple


class Mutation(NamedTuple):
    set: str
    name: str
    edits: list  # (file, old, new)


MUTATIONS = []
# Substrings of tests and their files, as carat_test takes them.
TESTS = {
    "qwen3": ["fidelity_qwen3"],
    "qwen3moe": ["fidelity_qwen3moe", "experts_with_gate_and_up"],
    "qwen35": ["fidelity_qwen35", "backend/cpu/recur"],
    "states": ["engine/recur_test", "tests/hybrid_test"],
    "taps": ["taps_of_every_family"],
    "gpt-oss": ["fidelity_gpt_oss", "backend/cpu/attend_test", "backend/cpu/matmul_test",
                "apps/convert_families_test"],
    "llama": ["fidelity_llama", "apps/convert_families_test"],
    "mixtral": ["fidelity_mixtral", "experts_with_gate_and_up", "fidelity_ministral3", "apps/convert_families_test"],
    "gemma3": ["fidelity_gemma3", "embeddings_of_encoders", "apps/convert_families_test"],
    "laguna": ["fidelity_laguna"],
    "importance": ["importance_", "tail_"],
    "drafters": ["spec/mtp_test", "model/dflash_test", "spec/dflash_test", "draft_blocks",
                 "draft_steps"],
    "nextn": ["spec/nextn_test", "tests/hybrid_test"],
    "convert": ["apps/convert_families_test"],
    "sound": ["sound/", "audio_", "engine/media_sound", "sound_server", "speech_is_cut", "sound_logits"],
    "media": ["engine/media", "vision_", "picture_logits", "image/", "tests/media_cli_test", "pictures_are_seen"],
    "holes": ["logprobs_server_test", "text/grammar_test", "ollama_pull", "apps/hub/store_test",
              "format/safetensors_test", "gemma4_mtp_table_test", "base/str_test", "pager_opens",
              "tests/kv_snapshot_test", "text/compress_test", "times_of_a_cancelled_job",
              "control_checks_one_new_draft", "base/clock"],
    # Tests that show themselves fewer shapes in the short suite.
    "brief": ["=cpu_attention_of_two_sequences_and_of_trees", "=cpu_product_rows_do_not_notice_their_neighbours",
              "=page_sums_of_every_format", "=every_allocation_of_a_small_pool_may_fail", "fit_more_memory",
              "fit_on_cards", "fidelity_last_row", "fidelity_stored", "session_edited_prompt", "session_rewinds", "control_comes",
              "control_never", "kv/kv_test", "dflash_drafts_like"],
}


def mistake(set_, name, *edits):
    MUTATIONS.append(Mutation(set_, name, list(edits)))


REF, SMALL = "backend/cpu/ref.c", "backend/cpu/small.c"
SMALL_H, BIND, OPS = "backend/cpu/small_int.h", "model/bind.c", "backend/ops.c"

# ---- Qwen3 ---------------------------------------------------------------------------------

QWEN3, BLOCK = "model/qwen3.c", "model/block.c"
Q3, K_NORM, QKV = ".q_norm = or_null(&L->q_norm),", ".k_norm = or_null(&L->k_norm),", "mat q = op_qkv(p, &of, kv);"
K, V = "of.k = mat_heads(y[0], d);", "of.v = mat_heads(y[1], d);"
KEYS_APART = (BLOCK, K_NORM, ""), (BLOCK, ".k_rope = L->rope,", "")
GLU, UP = "op_glu(p, h, &L->gate, &L->up,", ".up = or_null(&L->up)"

mistake("qwen3", "head size from the width over the heads",
        (QWEN3, "[HD] = s->head_dim,", "[HD] = s->n_embd / s->n_head[0],"))
mistake("qwen3", "queries normed after the rotation",
        (BLOCK, Q3, ""), (BLOCK, ".q_rope = &turn,", ""),
        (BLOCK, QKV, "mat q = op_rms_norm_inplace(p, op_rope(p, op_qkv(p, &of, kv), &turn), &L->q_norm, g->eps);"))
mistake("qwen3", "keys normed after the rotation", *KEYS_APART,
        (BLOCK, K, "of.k = op_rms_norm_inplace(p, op_rope(p, mat_heads(y[0], d), L->rope), &L->k_norm, g->eps);"))
mistake("qwen3", "values normed", (BLOCK, V, "of.v = op_rms_norm(p, mat_heads(y[1], d), NULL, g->eps);"))
mistake("qwen3", "values rotated", (BLOCK, V, "of.v = op_rope(p, mat_heads(y[1], d), L->rope);"))
mistake("qwen3", "attention scale 1", (BLOCK, "op_attend(p, q, kv, g->scale)", "op_attend(p, q, kv, 1)"))
mistake("qwen3", "norm of keys for queries", (BLOCK, Q3, ".q_norm = or_null(&L->k_norm),"))
mistake("qwen3", "gate and up exchanged", (BLOCK, GLU, "op_glu(p, h, &L->up, &L->gate,"))
mistake("qwen3", "interleaved rotation, definition",
        (REF, "(size_t)x.cols + pair_at(f, i); double a = v[0], b = v[apart]; "
         "v[0] = (float)(a * c - b * s); v[apart]",
         "(size_t)x.cols + 2 * i; double a = v[0], b = v[1]; v[0] = (float)(a * c - b * s); v[1]"))
mistake("qwen3", "interleaved rotation, kernels",
        (SMALL, "if (!f->interleaved) {", "if (!f->n_pairs) {"))
mistake("qwen3", "key head by modulo, definition",
        (REF, ".g = h / (a->q.heads / kv->n_head_kv)};", ".g = h % kv->n_head_kv};"))
mistake("qwen3", "YaRN: no ramp", (BIND, "return 1 - ramp + ramp / s->factor;",
                                   "return ramp < 2 ? 1 / s->factor : 1;"))
mistake("qwen3", "YaRN: no factor on cosines and sines",
        (BIND, "(1 + 0.1 * log(x.factor)) * attn", "(x.factor > 0) * attn"))

mistake("qwen3moe", "experts' gate and up exchanged",
        (BLOCK, UP, ".up = L->up.n_in ? &L->gate : NULL"))
mistake("qwen3moe", "one expert fewer", (BLOCK, ".k = g->n_used", ".k = g->n_used - 1"))
mistake("qwen3moe", "router by sigmoid",
        (BLOCK, ".k = g->n_used", ".rule = &(route_rule){.sigmoid = true, .factor = 1}, "
         ".k = g->n_used"))
mistake("qwen3moe", "router before the norm", (OPS, "to = op_router(p, x, m->router, m->k, m->rule);",
        "mat u = pass_mat(p, x.rows, 1, x.cols); op_copy(p, u, x); op_scale(p, u, 0.5f, NULL); to = op_router(p, u, m->router, m->k, m->rule);"))

GPT_OSS, ATTEND, MATMUL = "model/gpt_oss.c", "backend/cpu/attend.c", "backend/cpu/matmul.c"
TURNED = "apps/convert_turned.c"
mistake("gpt-oss", "no sinks", (GPT_OSS, ".sinks = &L->sinks", ".sinks = NULL"))
mistake("gpt-oss", "sinks of split decode missing",
        (ATTEND, "*sum = with_sink(a, head, iq, *top, *sum);", ""))
mistake("gpt-oss", "sinks of prompts missing",
        (ATTEND, "sum[iq] = with_sink(a, head, iq, top[iq], sum[iq]);", ""))
mistake("gpt-oss", "the sink of another head of the group",
        (ATTEND, "sinks[head * a->group + iq % a->group]", "sinks[head * a->group]"))
mistake("gpt-oss", "no bias of keys", (GPT_OSS, "B->wk.bias = &L->bk;", ""))
mistake("gpt-oss", "no bias of the router", (GPT_OSS, "B->router.bias = &L->router_bias;", ""))
mistake("gpt-oss", "no bias of down products", (GPT_OSS, "B->down.bias = &L->down_bias;", ""))
mistake("gpt-oss", "biases of the first expert", (MATMUL, "weight_bias(j->w, j->k);", "weight_bias(j->w, 0);"))
mistake("gpt-oss", "biases of gates for ups", (GPT_OSS, "B->up.bias = &L->up_bias;", "B->up.bias = &L->gate_bias;"))
mistake("gpt-oss", "windows in the other layers", (GPT_OSS, "s->swa[i] ? s->window : 0", "s->swa[i] ? 0 : s->window"))
mistake("gpt-oss", "YaRN's blend at whole pairs", (GPT_OSS, "s->scaling.unrounded = true;", ""))
mistake("gpt-oss", "units not cut", (SMALL_H, "vf cut = vf_set(SWIGLU_CUT)", "vf cut = vf_set(1e30f)"))
mistake("gpt-oss", "ups without the 1", (SMALL_H, "(u + one)", "u"))
mistake("gpt-oss", "silu", (SMALL_H, "vf_sigmoid(g * slope)", "vf_sigmoid(g)"))
mistake("gpt-oss", "gates and ups exchanged in conversion",
        (GPT_OSS, "r->change == UPS;", "r->change == GATES;"))
mistake("gpt-oss", "nibbles of MXFP4 as in the checkpoint", (TURNED, "int shift = j % 2 * 4;", "int shift = 4 - j % 2 * 4;"))
mistake("gpt-oss", "outputs before inputs", (TURNED, "step = t->ne[1] * every(t);", "step = 1;"))

LLAMA = "model/llama.c"
mistake("llama", "half-split rotation", (LLAMA, "rope[PASS_MAIN].interleaved = true", "rope[PASS_MAIN].interleaved = false"))
mistake("llama", "no divisors of frequencies", (LLAMA, "s->n_rot / 2, &g->rope_factors, &s->scaling}",
        "s->n_rot / 2, NULL, &s->scaling}"))
mistake("llama", "values rotated", (BLOCK, V, "of.v = op_rope(p, mat_heads(y[1], d), L->rope);"))
mistake("llama", "no window", (LLAMA, ".window = s->window,", ".window = 0,"))
mistake("llama", "rows of keys as in the checkpoint",
        (LLAMA, 'T_AS(INTERLEAVE, ALWAYS, W(wk),', 'T(ALWAYS, W(wk),'))
mistake("llama", "divisors: no blend", (LLAMA, "fmin(fmax((turns - y->low) / (y->high - y->low), 0), 1)",
        "(turns > y->low)"))
mistake("llama", "gate and up exchanged", (BLOCK, GLU, "op_glu(p, h, &L->up, &L->gate,"))

mistake("mixtral", "one expert fewer", (BLOCK, ".k = g->n_used", ".k = g->n_used - 1"))
mistake("mixtral", "experts' gate and up exchanged",
        (BLOCK, ".gate = &L->gate, " + UP,
         ".gate = L->up.n_in ? &L->up : &L->gate, .up = L->up.n_in ? &L->gate : NULL"))
mistake("mixtral", "gate and up exchanged in conversion",
        (LLAMA, 'HF_EXPERT("w1"), HF_EXPERT("w3"),', 'HF_EXPERT("w3"), HF_EXPERT("w1"),'))
mistake("mixtral", "router by sigmoid",
        (BLOCK, ".k = g->n_used", ".rule = &(route_rule){.sigmoid = true, .factor = 1}, .k = g->n_used"))
mistake("mixtral", "Ministral 3: no temperature", (BLOCK, "turn.grow = g->temperature;", "turn.grow = 0;"))
mistake("mixtral", "Ministral 3: temperature of keys",
        (BLOCK, ".k_rope = L->rope,", ".k_rope = &turn,"))
mistake("mixtral", "Ministral 3: another period", (BLOCK, "turn.period = g->period;", "turn.period = g->period + 1;"))

GEMMA3 = "model/gemma3.c"
mistake("gemma3", "rotations of global and local layers exchanged",
        (GEMMA3, "s->swa[i] ? &g->rope_swa[PASS_MAIN]", "!s->swa[i] ? &g->rope_swa[PASS_MAIN]"))
mistake("gemma3", "windows in the other layers", (GEMMA3, ".window = s->swa[il] ? window : 0", ".window = s->swa[il] ? 0 : window"))
mistake("gemma3", "queries not normed", (BLOCK, Q3, ""))
mistake("gemma3", "no norm after attention",
        (BLOCK, ".norm = or_null(&L->attn_post_norm), .eps", ".eps"))
mistake("gemma3", "no norm after the feed-forward",
        (BLOCK, ".y = y, .norm = or_null(&L->ffn_post_norm)}", ".y = y}"))
mistake("gemma3", "norms without the 1 in conversion",
        (GEMMA3, "r->role == ROLE_NORM || r->role == ROLE_QK_NORM ? 1 : 0;", "0; (void)r;"))
mistake("gemma3", "the scale of attention by the heads' size",
        (GEMMA3, ".scale = (float)(s->scale > 0 ? s->scale : gemma3_scale(s)),",
         ".scale = 1 / sqrtf((float)s->head_dim),"))
mistake("gemma3", "encoder: no token sees a later one",
        (GEMMA3, ".inside = both ? KV_INSIDE_ROWS : KV_INSIDE_CAUSAL", ".inside = KV_INSIDE_CAUSAL"))
mistake("gemma3", "encoder: a window narrower by one on each side", (GEMMA3, "s->window / 2 + 1", "s->window / 2"))
mistake("gemma3", "encoder: no dense layers", (GEMMA3, "if (!g->dense_2.n_in || !y.rows)", "if (y.rows >= 0)"))

# ---- Qwen3.5: attention --------------------------------------------------------------------

QWEN35, QWEN35_BIND = "model/qwen35.c", "model/qwen35_table.c"
GATE = "mat a = op_attend_gate(p, q, mat_columns(both, d, d), ACT_SIGMOID, kv, of.scale);"
Q35 = "of.q = mat_columns(both, 0, d);"
BOTH = "mat both = mat_head_rows(mat_heads(y[2], 2 * d));"
USED35 = "const turning t = "
TURN35 = USED35 + "{s->n_rotating, s->theta, s->n_rotating / 2, NULL, &s->scaling}"

mistake("qwen35", "attention's gate by SiLU", (QWEN35, GATE, GATE.replace("SIGMOID", "SILU")))
mistake("qwen35", "attention's gate by softplus", (QWEN35, GATE, GATE.replace("SIGMOID", "SOFTPLUS")))
mistake("qwen35", "no gate of attention", (QWEN35, GATE, "mat a = mat_flat(op_attend(p, q, kv, of.scale));"))
mistake("qwen35", "gate normed", (QWEN35, GATE, GATE.replace("mat_columns(both, d, d)",
        "op_rms_norm(p, mat_columns(both, d, d), &L->q_norm, g->eps)")))
mistake("qwen35", "gate rotated", (QWEN35, GATE, """mat turned = pass_mat(p, both.rows, 1, d);
        op_copy(p, turned, mat_columns(both, d, d));
        turned = mat_head_rows(op_rope(p, mat_row_heads(turned, g->n_head), L->rope));
        """ + GATE.replace("mat_columns(both, d, d)", "turned")))
mistake("qwen35", "queries and gates of a head exchanged",
        (QWEN35, Q35, "of.q = mat_columns(both, d, d);"),
        (QWEN35, GATE, GATE.replace("d, d", "0, d")))
mistake("qwen35", "queries and gates as halves of the matrix",
        (QWEN35, BOTH, """mat w = y[2];
        mat both = pass_mat(p, w.rows * g->n_head, 1, 2 * d);
        for (int32_t i = 0; i < 2; i++) {
            mat half = pass_mat(p, w.rows, 1, w.cols / 2);
            op_copy(p, half, mat_columns(w, i * w.cols / 2, w.cols / 2));
            op_copy(p, mat_columns(both, i * d, d), mat_head_rows(mat_heads(half, d)));
        }"""))
mistake("qwen35", "attention's scale by the rotated dims",
        (QWEN35, ".scale = 1 / sqrtf((float)d)}", ".scale = 1 / sqrtf((float)d / 4)}"))
mistake("qwen35", "queries normed after the rotation",
        (QWEN35, ".q_norm = &L->q_norm,", ""), (QWEN35, ".q_rope = L->rope,", ""),
        (QWEN35, Q35, """mat alone = pass_mat(p, both.rows, 1, d);
         op_copy(p, alone, mat_columns(both, 0, d));
         of.q = mat_row_heads(alone, g->n_head);"""),
        (QWEN35, QKV, "mat q = op_rms_norm_inplace(p, op_rope(p, op_qkv(p, &of, kv), L->rope), &L->q_norm, g->eps);"))
mistake("qwen35", "frequencies by the head's size, not the rotated dims",
        (QWEN35_BIND, TURN35, USED35 + "{s->n_rotating, pow(s->theta, (double)s->n_rotating / s->head_dim), "
         "s->n_rotating / 2, NULL, &s->scaling}"))
mistake("qwen35", "all dims rotate",
        (QWEN35_BIND, TURN35, USED35 + "{s->head_dim, s->theta, s->head_dim / 2, NULL, &s->scaling}"))
mistake("qwen35", "1 added to the norms again",
        (QWEN35_BIND, "bind_ranges(m, g, s->n_layer);", """for (int32_t i = 0; i < g->n_layer; i++)
            for (int32_t j = 0; j < s->n_embd; j++)
                ((float *)g->layer[i].norm.data)[j] += 1;
        bind_ranges(m, g, s->n_layer);"""))
mistake("qwen35", "the other norm of the layer", (QWEN35, ".eps = g->eps}, &L->ffn_norm)", ".eps = g->eps}, &L->norm)"))

# ---- Qwen3.5: the delta rule ---------------------------------------------------------------

RECUR_REF, RECUR, RECUR_H = "backend/cpu/recur_ref.c", "backend/cpu/recur.c", "backend/cpu/recur_int.h"
UNIT = "o = op_rms_norm_inplace(p, o, u->norm, u->eps);"
Z = "p->dev->op->act_mul(p, y, mat_flat(z), mat_flat(o), ACT_SILU);"

mistake("qwen35", "the delta rule's gate by a sigmoid", (OPS, Z, Z.replace("SILU", "SIGMOID")))
mistake("qwen35", "the gate before the norm",
        (OPS, UNIT, "op_act_mul(p, mat_flat(z), mat_flat(o), ACT_SILU);" + UNIT),
        (OPS, Z, "op_copy(p, y, mat_flat(o));"))
mistake("qwen35", "no norm after the delta rule", (OPS, UNIT, ""))
mistake("qwen35", "decays and shares exchanged",
        (OPS, "op_delta(p, op_conv(p, x, u->taps, rv), a, b, &u->gate, rv)",
         "op_delta(p, op_conv(p, x, u->taps, rv), b, a, &u->gate, rv)"))
mistake("qwen35", "taps reversed, definition",
        (RECUR_REF, "sum += (double)taps[j] * in[j][c];", "sum += (double)taps[n_taps - 1 - j] * in[j][c];"))
mistake("qwen35", "taps reversed, kernels",
        (RECUR, "taps[t * CONV_CHANNELS + c] = of_channel[t];",
         "taps[(v->n_taps - 1 - t) * CONV_CHANNELS + c] = of_channel[t];"))
mistake("qwen35", "no SiLU on values, definition",
        (RECUR_REF, "mat_row(y, r)[c] = (float)(sum / (1 + exp(-sum)));",
         "mat_row(y, r)[c] = (float)(c < 2 * rv->n_k * rv->dk ? sum / (1 + exp(-sum)) : sum);"))
mistake("qwen35", "no SiLU on queries and keys, definition",
        (RECUR_REF, "mat_row(y, r)[c] = (float)(sum / (1 + exp(-sum)));",
         "mat_row(y, r)[c] = (float)(c >= 2 * rv->n_k * rv->dk ? sum / (1 + exp(-sum)) : sum);"))
mistake("qwen35", "no SiLU after the convolution, kernels", (RECUR_H, "PUT(y, vf_silu(s))", "PUT(y, s)"))
mistake("qwen35", "the convolution's inputs are not carried, definition",
        (RECUR_REF, "if (s->final) shift_inputs(", "if (s->final && s->n < 0) shift_inputs("))
mistake("qwen35", "the convolution's inputs are not carried, kernels",
        (RECUR, "s->n && s->final && t < old", "s->n > 2 && s->final && t < old"))
mistake("qwen35", "the carried inputs are one too old, kernels",
        (RECUR, "mat_row(j->x, s->row0 + from - old)",
         "mat_row(j->x, s->row0 + (from > old ? from - old - 1 : 0))"))
mistake("qwen35", "pending inputs are not applied, kernels",
        (RECUR, "for (int32_t t = 0; s->n_pending && t < old; t++)",
         "for (int32_t t = 0; s->n_pending > 1 && t < old; t++)"))
mistake("qwen35", "keys are read before the decay, definition",
        (RECUR_REF, "known += (double)(float)((double)*s * d->decay[at]) * k[l];",
         "known += (double)*s * k[l];"))
mistake("qwen35", "keys are read before the decay, kernels",
        (RECUR, """static void compute_row(const delta_job *d, const state_block *w, float *s, int32_t r, float *error)
{""", """static void compute_row(const delta_job *d, const state_block *w, float *s, int32_t r, float *error);
static void plain_row(const delta_row *x)
{
    for (int32_t i = 0; i < x->n; i++) {
        float *s = x->s + (size_t)i * (size_t)x->dk, known = 0, sum = 0;
        for (int32_t l = 0; l < x->dk; l++)
            known += s[l] * x->k[l];
        x->e[i] = x->write * (x->v[i] - known);
        for (int32_t l = 0; l < x->dk; l++) {
            s[l] = s[l] * x->decay + x->e[i] * x->k[l];
            sum += s[l] * x->q[l];
        }
        x->o[i] = sum;
    }
}
static void compute_row(const delta_job *d, const state_block *w, float *s, int32_t r, float *error)
{"""), (RECUR, "d->kernels->delta_row(", "plain_row("))
mistake("qwen35", "queries read before the write, definition",
        (RECUR_REF, "apply_row(v, state, d->decay[at], k, error); for (int32_t i = 0; i < v->dv; i++) {",
         "for (int32_t i = 0; i < v->dv; i++) {"),
        (RECUR_REF, "sum += (double)state[(size_t)i * (size_t)v->dk + (size_t)l] * q[l]; o[i] = (float)sum; }",
         "sum += (double)state[(size_t)i * (size_t)v->dk + (size_t)l] * d->decay[at] * q[l]; "
         "o[i] = (float)sum; } apply_row(v, state, d->decay[at], k, error);"))
mistake("qwen35", "no scale of queries, definition", (RECUR_REF, "q, v->dk, sqrt(v->dk)", "q, v->dk, 1"))
mistake("qwen35", "no scale of queries, kernels",
        (RECUR, "q, v->dk, 1 / sqrtf((float)v->dk)", "q, v->dk, 1"))
mistake("qwen35", "keys scaled too, definition", (RECUR_REF, "q + width, v->dk, 1)", "q + width, v->dk, sqrt(v->dk))"))
mistake("qwen35", "queries are not divided by their length, definition",
        (RECUR_REF, "normalise(d->q + (size_t)r * width + at, q, v->dk, sqrt(v->dk));",
         "for (int32_t i = 0; i < v->dk; i++) (d->q + (size_t)r * width + at)[i] = q[i] / sqrtf((float)v->dk);"))
mistake("qwen35", "length of keys without the eps, definition",
        (RECUR_REF, "sqrt(sum + L2_EPS)", "sqrt(sum + 1e-30)"))
mistake("qwen35", "length of keys without the eps, kernels",
        (RECUR, "(sum[2] + sum[3]) + L2_EPS", "(sum[2] + sum[3]) + 1e-30f"))
mistake("qwen35", "length of keys: the larger of length and eps, definition",
        (RECUR_REF, "sqrt(sum + L2_EPS)", "fmax(sqrt(sum), L2_EPS)"))
mistake("qwen35", "length of keys: eps outside the root, definition",
        (RECUR_REF, "sqrt(sum + L2_EPS)", "(sqrt(sum) + L2_EPS)"))
mistake("qwen35", "mean instead of sum in the length, definition",
        (RECUR_REF, "sqrt(sum + L2_EPS)", "sqrt(sum / n + L2_EPS)"))
mistake("qwen35", "grouped value heads, definition",
        (RECUR_REF, "row.keys + (size_t)(j % v->n_k)", "row.keys + (size_t)(j / (v->n_v / v->n_k))"),
        (RECUR_REF, "(size_t)v->n_k + (size_t)(j % v->n_k)",
         "(size_t)v->n_k + (size_t)(j / (v->n_v / v->n_k))"))
mistake("qwen35", "grouped value heads, kernels",
        (RECUR, "row.keys + (size_t)(w->head % v->n_k)",
         "row.keys + (size_t)(w->head / (v->n_v / v->n_k))"),
        (RECUR, "(size_t)v->n_k + (size_t)(w->head % v->n_k)",
         "(size_t)v->n_k + (size_t)(w->head / (v->n_v / v->n_k))"))
mistake("qwen35", "no dt bias, definition", (RECUR_REF, "+ (double)d->gdt[j];", "+ 0 * (double)d->gdt[j];"))
mistake("qwen35", "dt bias after the softplus, definition",
        (RECUR_REF, "double x = mat_row(d->a, r)[j] + (double)d->gdt[j];", "double x = mat_row(d->a, r)[j];"),
        (RECUR_REF, "log1p(exp(-fabs(x))))", "log1p(exp(-fabs(x))) + d->gdt[j])"))
mistake("qwen35", "sigmoid for softplus in the decay, definition",
        (RECUR_REF, "(fmax(x, 0) + log1p(exp(-fabs(x))))", "(1 / (1 + exp(-x)))"))
mistake("qwen35", "no sigmoid on the share, definition",
        (RECUR_REF, "(float)(1 / (1 + exp(-(double)mat_row(d->b, r)[j])))", "mat_row(d->b, r)[j]"))
mistake("qwen35", "no decay, definition", (RECUR_REF, "(float)exp(g)", "(float)exp(g * 0)"))
mistake("qwen35", "the state is not kept, definition",
        (RECUR_REF, "if (s->final) memcpy(state, now, n * sizeof *now);", "(void)n;"))
mistake("qwen35", "a branch of a tree goes on from the row before, kernels",
        (RECUR, "if (d->st->parent[r] != last) {", "if (d->st->parent[r] != last && last < 0 && r > s->row0) {"))

# ---- Qwen3.5: experts ----------------------------------------------------------------------

mistake("qwen35", "weights of experts are not normalised, definition",
        (REF, "pr[id[j]] / picked * route_factor(rule)", "pr[id[j]] * route_factor(rule)"))
mistake("qwen35", "weights of experts are not normalised, kernels",
        (SMALL, "share[i] / picked * route_factor(j->rule)", "share[i] * route_factor(j->rule)"))
mistake("qwen35", "no gate of the shared expert", (QWEN35, ".shared_factor = &L->shared_gate,", ""))
mistake("qwen35", "the shared expert's gate by SiLU",
        (OPS, "op_matmul(p, x, m->shared_factor), y, ACT_SIGMOID", "op_matmul(p, x, m->shared_factor), y, ACT_SILU"))
mistake("qwen35", "experts' gate and up halves exchanged, definition",
        (REF, "expert_dot(m->a, e, o, mat_row(m->x, r), row)",
         "expert_dot(m->a, e, m->b ? o : o + m->n_ff, mat_row(m->x, r), row)"),
        (REF, "m->b ? o : o + m->n_ff, mat_row(m->x, r), row); mat_row(m->y",
         "o, mat_row(m->x, r), row); mat_row(m->y"))
mistake("qwen35", "GELU for SiLU in experts",
        (QWEN35, ".k = g->n_expert_used, .act = ACT_SILU", ".k = g->n_expert_used, .act = ACT_GELU_TANH"))
mistake("qwen35", "sigmoid router", (QWEN35, "const mixture m = {.router = &L->router,",
        "static const route_rule sigmoid = {.sigmoid = true, .factor = 1}; "
        "const mixture m = {.router = &L->router, .rule = &sigmoid,"))

# ---- Qwen3.5: states -----------------------------------------------------------------------

SNAP, CACHE = "kv/snapshot.c", "kv/cache.c"
mistake("states", "snapshots without the convolution's inputs",
        (SNAP, "move_floats(d, c->recur[i].conv, host + p.state, (floats){p.conv, p.conv, p.conv, 1}, load);", ""))
mistake("states", "a new timeline keeps the old one's state",
        (CACHE, "d->clear(d, c->recur[i].state, (p.at_block + head) * sizeof(float));", "(void)d; (void)head;"))
mistake("states", "a rewind forgets no pending row",
        (CACHE, "c->recur_rows.n_pending -= (int32_t)(c->n_past - n_past);", "(void)0;"))

# ---- Qwen3.5: conversion -------------------------------------------------------------------

SHAPES35, CONVERT = "model/qwen35_table.c", "apps/convert.c"
mistake("convert", "1 not added to norms of layers", (SHAPES35, ".add = how == ONE_MORE,", ".add = how == ONE_MORE && il < 0,"),
        (SHAPES35, "static hf_change change_of(const qwen35_shape *s, conversion how, const int8_t *ne)",
         "static hf_change change_of(const qwen35_shape *s, conversion how, const int8_t *ne, int il)"),
        (SHAPES35, "change_of(own(m), (conversion)r->change, r->ne);",
         "change_of(own(m), (conversion)r->change, r->ne, t->layer);"))
for _place, _what in (("attends, W(q_norm)", "attn_q_norm"), ("attends, W(k_norm)", "attn_k_norm"),
                      ("ALWAYS, M(out_norm)", "the last norm")):
    mistake("convert", f"1 not added to {_what}",
            (SHAPES35, f"T_AS(ONE_MORE, {_place},", f"T_AS(AS_IS, {_place},"))
mistake("convert", "1 added to the norm after the delta rule",
        (SHAPES35, "T(recurs, W(out_norm),", "T_AS(ONE_MORE, recurs, W(out_norm),"))
mistake("convert", "value heads stay grouped",
        (SHAPES35, "c.n_k = (uint32_t)s->n_k;", "c.n_k = 0;"))
mistake("convert", "value heads moved the other way",
        (CONVERT, "j % c->n_k * (c->n_v / c->n_k) + j / c->n_k",
         "j % (c->n_v / c->n_k) * c->n_k + j / (c->n_v / c->n_k)"))
for _was, _place, _what in (("V_COLUMNS", "W(out)", "columns of ssm_out"), ("V_COLUMNS", "W(dt)", "ssm_dt"),
                            ("V_ROWS", "W(wa)", "ssm_alpha"), ("V_ROWS", "W(wz)", "attn_gate"),
                            ("TAPS_OF", "W(taps)", "taps")):
    mistake("convert", f"{_what} stay", (SHAPES35, f"T_AS({_was}, recurs, {_place},", f"T_AS(AS_IS, recurs, {_place},"))
mistake("convert", "rows of queries and keys move too",
        (SHAPES35, "in_qkv ? 2 * (uint64_t)s->n_k * (uint64_t)s->dk : 0", "0 * in_qkv"))
mistake("convert", "A_log as it is", (SHAPES35, ".neg_exp = how == A_LOG", ".neg_exp = how == A_LOG && !how"))

# ---- Laguna --------------------------------------------------------------------------------

LAGUNA = "model/laguna.c"
HEAD_GATE = "ACT_SOFTPLUS, kv, g->scale);"
WINDOW = ".window = s->swa[i] ? s->window : 0,"
RULE = "rule = {g->sigmoid, or_null(&L->router_bias), NULL, g->expert_factor};"
FULL = "full = {s->n_rot, s->theta, s->n_rot / 2, NULL, &s->scaling};"

mistake("laguna", "window one shorter", (LAGUNA, WINDOW, ".window = s->swa[i] ? s->window - 1 : 0,"))
mistake("laguna", "window one longer", (LAGUNA, WINDOW, ".window = s->swa[i] ? s->window + 1 : 0,"))
mistake("laguna", "full and window layers exchanged", (LAGUNA, WINDOW, ".window = s->swa[i] ? 0 : s->window,"))
mistake("laguna", "head gate by a sigmoid", (BLOCK, HEAD_GATE, HEAD_GATE.replace("SOFTPLUS", "SIGMOID")))
mistake("laguna", "head gate by SiLU", (BLOCK, HEAD_GATE, HEAD_GATE.replace("SOFTPLUS", "SILU")))
mistake("laguna", "no head gate", (BLOCK, "mat a = n == 3 ?", "mat a = n ?"))
mistake("laguna", "head gate of the residual stream", (BLOCK, "mat_heads(y[3], L->attn_gate.n_out",
        "mat_heads(op_matmul(p, s->x, &L->attn_gate), L->attn_gate.n_out"))
mistake("laguna", "softplus without its linear part, kernels",
        (SMALL_H, "(fmaxf(a[i], 0.0f) + log1pf(expf(-fabsf(a[i]))))", "log1pf(expf(-fabsf(a[i])))"))
mistake("laguna", "softmax router", (BLOCK, RULE, "rule = {false, NULL, NULL, g->expert_factor};"))
mistake("laguna", "no selection bias", (BLOCK, RULE, "rule = {g->sigmoid, NULL, NULL, g->expert_factor};"))
mistake("laguna", "selection bias in the weights, definition",
        (REF, "picked += pr[best];", "pr[best] += bias ? bias[best] : 0; picked += pr[best];"))
mistake("laguna", "selection bias in the weights, kernels",
        (SMALL, "share[i] = j->rule->sigmoid ? sigmoid(z[best]) : pr[best];", "share[i] = pr[best];"))
mistake("laguna", "no factor of the experts", (BLOCK, RULE, "rule = {g->sigmoid, or_null(&L->router_bias), NULL, 1};"))
mistake("laguna", "the experts' factor on the shared expert too",
        (BLOCK, "mat y = L->router.n_in ? op_mixture(p, h, &m)",
         "if (L->shared_gate.n_in) op_add(p, x, op_scale(p, op_matmul(p, op_glu(p, h, &L->shared_gate, &L->shared_up, "
         "g->act), &L->shared_down), g->expert_factor - 1, NULL)); mat y = L->router.n_in ? op_mixture(p, h, &m)"))
mistake("laguna", "normalised over all experts, definition",
        (REF, "for (int32_t j = 0; j < r.k; j++) share[j] = (float)(pr[id[j]]",
         "picked = 0; for (int32_t e = 0; e < n; e++) picked += pr[e]; "
         "for (int32_t j = 0; j < r.k; j++) share[j] = (float)(pr[id[j]]"))
mistake("laguna", "the shared expert's gate and up exchanged",
        (BLOCK, ".shared_gate = or_null(&L->shared_gate), .shared_up = or_null(&L->shared_up),",
         ".shared_gate = or_null(&L->shared_up), .shared_up = or_null(&L->shared_gate),"))
mistake("laguna", "rotated dims of the layer kinds exchanged",
        (LAGUNA, "s->swa[i] ? &g->rope_swa[PASS_MAIN] : &g->rope_full[PASS_MAIN]",
         "s->swa[i] ? &g->rope_full[PASS_MAIN] : &g->rope_swa[PASS_MAIN]"))
mistake("laguna", "YaRN's factor on all dims",
        (BLOCK, "ACT_SOFTPLUS, kv, g->scale);",
         "ACT_SOFTPLUS, kv, g->scale * (kv->window || !g->sigmoid ? 1 : (1 + 0.1f * logf(32)) "
         "* (1 + 0.1f * logf(32))));"),
        (BLOCK, '#include "model/block.h"', '#include "model/block.h"\n#include <math.h>\n'),
        (LAGUNA, "m->window = s->window; return bind_done", "g->rope_full[PASS_MAIN].factor = 1; "
         "m->window = s->window; return bind_done"))
mistake("laguna", "beta_fast 32 instead of the file's", (BIND, "1e-3, 1e6, 32}, &x.beta_fast, e)",
        "1e-3, 1e6, 32}, &x.beta_fast, e)) || ((x.beta_fast = 32) < 0"))
mistake("laguna", "no factor on cosines and sines", (BIND, "(1 + 0.1 * log(x.factor)) * attn", "(x.factor > 0) * attn"))
mistake("laguna", "YaRN's ramp turned round", (BIND, "1 - ramp + ramp / s->factor", "ramp + (1 - ramp) / s->factor"))
mistake("laguna", "YaRN in window layers too",
        (LAGUNA, "s->n_rot_swa / 2, NULL, NULL}", "s->n_rot_swa / 2, NULL, &s->scaling}"))
mistake("laguna", "one base for both kinds", (LAGUNA, "swa = {s->n_rot_swa, s->theta_swa,", "swa = {s->n_rot_swa, s->theta,"))
mistake("laguna", "attention scale 1", (LAGUNA, ".scale = 1.0f / sqrtf((float)s->head_dim)", ".scale = 1"))

# ---- The importance of tokens --------------------------------------------------------------

TAIL, IMPORTANCE = "backend/cpu/tail.c", "engine/importance.c"
TURN = "pair[0] = a * c + b * s; pair[pair_step(r)] = b * c - a * s;"
mistake("importance", "keys as they are stored, definition", (TAIL, TURN, "pair[0] = a; pair[pair_step(r)] = b;"))
mistake("importance", "keys turned on instead of back, kernels",
        (TAIL, "j->k->scale(angles + half, -over, (int32_t)half);", "j->k->scale(angles + half, over, (int32_t)half);"))
mistake("importance", "YaRN's factor stays, definition",
        (TAIL, "c = cos(angle) / rope_factor(r), s = sin(angle) / rope_factor(r);", "c = cos(angle), s = sin(angle);"))
mistake("importance", "queries after the rotation",
        (OPS, "if (a->tail) op_tail(p, q, kv, a->k_rope, a->scale); if (a->q_rope) op_rope(p, q, a->q_rope);",
         "if (a->q_rope) op_rope(p, q, a->q_rope); if (a->tail) op_tail(p, q, kv, a->k_rope, a->scale);"))
mistake("importance", "every row sees the last key, kernels",
        (TAIL, "int32_t to = s.hi - t0 < n ? (int32_t)(s.hi - t0) : n;", "int32_t to = n;"))
mistake("importance", "the sum of heads instead of the largest, kernels",
        (TAIL, "*at = share > *at ? share : *at;", "*at += share;"))
mistake("importance", "seven rows in the mean", (IMPORTANCE, "for (int32_t t = 0; t < TAIL; t++)", "for (int32_t t = 1; t < TAIL; t++)"))
mistake("importance", "twelve tokens in the mean", (IMPORTANCE, "n - j <= SMOOTH / 2 ? n : j + SMOOTH / 2 + 1;",
        "n - j <= SMOOTH / 2 ? n : j + SMOOTH / 2;"))
mistake("importance", "the ends divided by thirteen", (IMPORTANCE, "sum / (double)(to - from)", "sum / SMOOTH"))
mistake("importance", "no scale of scores", (OPS, "op_tail(p, q, kv, a->k_rope, a->scale);",
        "op_tail(p, q, kv, a->k_rope, 1);"))

# ---- Drafters ------------------------------------------------------------------------------
# Those that tools/demo/README.md has with acceptance figures are not repeated here.

DFLASH, SPEC_DFLASH, MTP, SPEC_MTP = "model/dflash.c", "spec/dflash.c", "model/gemma4_mtp.c", "spec/mtp.c"
MTP_BIND = "model/gemma4_mtp_table.c"
mistake("drafters", "DFlash: no features", (DFLASH, "mat x = op_matmul(p, mat_flat(f), &g->fc);",
        "mat x = op_scale(p, op_matmul(p, mat_flat(f), &g->fc), 0, NULL);"))
mistake("drafters", "DFlash: another mask token", (SPEC_DFLASH, "token[i] = x->g->mask_id;", "token[i] = x->g->mask_id + 1;"))
mistake("drafters", "DFlash: the target's norm instead of the drafter's",
        (DFLASH, "mat h = res_enter(p, &s, &g->out_norm);", "mat h = op_rms_norm(p, s.x, NULL, g->eps);"))
mistake("drafters", "DFlash: soft cap missing", (DFLASH, "t->softcap, t->suppress", "0, t->suppress"))
mistake("drafters", "DFlash: GELU for SiLU", (DFLASH, "ACT_SILU", "ACT_GELU_TANH"))
mistake("drafters", "DFlash: values normed", (DFLASH, ".v = mat_heads(y[1], g->head_dim),",
        ".v = op_rms_norm(p, mat_heads(y[1], g->head_dim), NULL, g->eps),"))
mistake("drafters", "DFlash: queries not rotated",
        (DFLASH, ".q_rope = L->rope,", ""))
mistake("drafters", "DFlash: slots in the order of the ranks", (SPEC_DFLASH, "p->id[i][j] = (int32_t)y[j];",
        "p->id[i][j] = (int32_t)y[p->n_ranks - 1 - j];"))
mistake("drafters", "Laguna's DFlash: no norm of features",
        (DFLASH, "for (int32_t i = 0; g->laguna && i < g->n_features; i++)", "for (int32_t i = 0; i < 0; i++)"))
mistake("drafters", "Laguna's DFlash: one norm for all features",
        (DFLASH, "&g->aux_norm[i], g->eps", "&g->aux_norm[0], g->eps"))
mistake("drafters", "Laguna's DFlash: context without the layer's norm",
        (DFLASH, "g->laguna ? op_rms_norm(p, x, &L->attn_norm, g->eps) : x", "x"))
mistake("drafters", "Laguna's DFlash: head gate by a sigmoid",
        (DFLASH, "mat_heads(y[3], 1), ACT_SOFTPLUS", "mat_heads(y[3], 1), ACT_SIGMOID"))
mistake("drafters", "Laguna's DFlash: no head gate",
        (DFLASH, "mat a = g->laguna ?", "mat a = g->n_layer < 0 ?"))
mistake("drafters", "MTP: hidden vector before the norm",
        (MTP, "op_copy(p, mat_columns(in, d, d), op_matmul(p, hn, &g->post));",
         "op_copy(p, mat_columns(in, d, d), op_matmul(p, s.x, &g->post));"))
mistake("drafters", "MTP: no hidden vector", (MTP, "op_copy(p, mat_columns(in, d, d), h);",
        "op_copy(p, mat_columns(in, d, d), h); op_scale(p, in, 0, NULL);"))
mistake("drafters", "MTP: hidden vector before the embedding",
        (MTP, "op_copy(p, mat_columns(in, 0, w->n_in), e);", "op_copy(p, mat_columns(in, w->n_in, w->n_in), e);"),
        (MTP, "op_copy(p, mat_columns(in, d, d), h);", "op_copy(p, mat_columns(in, 0, d), h);"),
        (MTP, "op_copy(p, mat_columns(in, d, d), op_matmul(p, hn, &g->post));",
         "op_copy(p, mat_columns(in, 0, d), op_matmul(p, hn, &g->post));"))
mistake("drafters", "MTP: queries not rotated",
        (MTP, ".eps = g->eps, .q_rope = L->rope}", ".eps = g->eps}"))
mistake("drafters", "MTP: queries not normed",
        (MTP, ".q_norm = &L->q_norm, .eps", ".eps"))
mistake("drafters", "MTP: position one too low", (SPEC_MTP, "list_of(all->pos)[rows] = c;",
        "list_of(all->pos)[rows] = c - 1;"))
mistake("drafters", "MTP: keys of the layer before", (MTP, "kv_view kv = kvs->view[L->donor];",
        "kv_view kv = kvs->view[L->donor > 0 && kvs->view[L->donor - 1].head_dim == "
        "kvs->view[L->donor].head_dim ? L->donor - 1 : L->donor];"))
mistake("drafters", "MTP: embedding without its scale",
        (MTP, "ids ? op_embed_at(p, at, w, target->embd_scale) : op_embed(p, w, target->embd_scale)",
         "ids ? op_embed_at(p, at, w, 1) : op_embed(p, w, 1)"))
mistake("drafters", "MTP: values from the store of keys", (SPEC_MTP, "rows++; } *n_steps = *n_steps <",
        "for (int32_t s = 0; s < d->st.n_kv; s++) { kv_base *b = d->bases + (size_t)rows * "
        "(size_t)d->st.n_kv + s; b->v = b->v ? b->k : NULL; } rows++; } *n_steps = *n_steps <"))
mistake("drafters", "MTP: layers' factor missing", (MTP, ".norm = &L->ffn_post_norm, .scale = &L->out_scale}", ".norm = &L->ffn_post_norm}"))
mistake("drafters", "MTP: norm after attention missing",
        (MTP, ".norm = &L->attn_post_norm, .eps", ".eps"))
mistake("drafters", "MTP: best token of the second rank", (SPEC_MTP, "o->id[i][r] = (int32_t)best[r];",
        "o->id[i][r] = (int32_t)best[k - 1 - r];"))

# ---- What drafters see of a model ----------------------------------------------------------

MODEL, TAP = "model/model.c", "pass_tap(p, il, s.x); /* a drafter may read this layer */"
for _file, _ffn in ((BLOCK, "add_ffn(p, g, layer_of(m, il), s, h);"), (QWEN35, "qwen35_add_ffn(p, g, L, s, h);")):
    mistake("taps", f"before {_ffn.split('(')[0]}", (MODEL, f"if (p->rows->n) {TAP}", ""),
            (_file, f"if (p->rows->n) {_ffn}", f"if (p->rows->n) {{ pass_tap(p, il, s->x); {_ffn} }}"))
mistake("taps", "only the wanted rows of the last layer",
        (MODEL, "il == m->n_layer - 1 && pass_last_tap(p) < il", "il == m->n_layer - 1"))
mistake("taps", "a layer too low", (MODEL, TAP, "pass_tap(p, il + 1, s.x);"))

# ---- NextN layers --------------------------------------------------------------------------

NEXTN, NEXTN_SPEC = "model/qwen35_nextn.c", "spec/nextn.c"

mistake("nextn", "hidden state before the embedding",
        (NEXTN, "mat_columns(both, 0, d), op_rms_norm(p, e,", "mat_columns(both, d, d), op_rms_norm(p, e,"),
        (NEXTN, "mat_columns(both, d, d), op_rms_norm(p, h,", "mat_columns(both, 0, d), op_rms_norm(p, h,"))
mistake("nextn", "hidden state without the model's last norm",
        (NEXTN, "h = op_rms_norm_inplace(p, h, made_by, x->g.eps);", "(void)made_by;"))
mistake("nextn", "norms of embedding and hidden state exchanged",
        (NEXTN, "op_rms_norm(p, e, &x->embd_norm,", "op_rms_norm(p, e, &x->hidden_norm,"),
        (NEXTN, "op_rms_norm(p, h, &x->hidden_norm,", "op_rms_norm(p, h, &x->embd_norm,"))
mistake("nextn", "the model's norm over the layer's own states",
        (NEXTN, "made_by == NEXTN_BY_MODEL ? model_norm(x) : layer_norm(x)", "model_norm(x)"),
        (NEXTN, "nextn_norm made_by,", "nextn_norm made_by __attribute__((unused)),"))
mistake("nextn", "the model's norm before the head",
        (NEXTN, ".next = layer_norm(x)}", ".next = model_norm(x)}"))
mistake("nextn", "no attention", (NEXTN, "h = qwen35_add_attention(p, &x->g, L, &kv->view[0], &s, h, false);",
                                  "h = op_rms_norm(p, s.x, &L->ffn_norm, x->g.eps);"))
mistake("nextn", "no feed-forward", (NEXTN, "qwen35_add_ffn(p, &x->g, L, &s, h);", "(void)h; s.made = 0;"))
mistake("nextn", "keys without the layer's norm",
        (NEXTN, "qwen35_keys(p, &x->g, x->g.layer, &kv->view[0], h);",
         "qwen35_keys(p, &x->g, x->g.layer, &kv->view[0], y); (void)h;"))
mistake("nextn", "the token's own hidden state",
        (NEXTN_SPEC, "int32_t before = first + i - 1;", "int32_t before = first + i;"))
mistake("nextn", "the stream before the last layer",
        (NEXTN_SPEC, "{{m->target->n_layer - 1, PASS_MAIN,", "{{m->target->n_layer - 2, PASS_MAIN,"))
mistake("nextn", "later drafts from the model's state",
        (NEXTN_SPEC, "j->hidden = drafts_at(&x->d.sizes) + rows;", ""))
mistake("nextn", "keys of drafts stay",
        (NEXTN_SPEC, "take_back(x->job[i].ask->s, x->job[i].n_past);", ""))
mistake("nextn", "the newest row is not kept",
        (NEXTN_SPEC, "op_copy(&p, cache_row(x, kept[i].s), seat_row(x, kept[i].s));", "n += 0;"))
mistake("nextn", "seats are not filled", (NEXTN_SPEC, "any |= !s[i]->seated;", "any |= false;"))
mistake("nextn", "rows that were missed are not noticed",
        (NEXTN_SPEC, "restart(s, kept[i].n_past);", "n_with += 0;"))

# ---- Conversion of Qwen3.5 -----------------------------------------------------------------

CONVERT, SHAPES35 = "apps/convert.c", "model/qwen35_table.c"

mistake("convert", "norms without the 1", (CONVERT, "x[i] += c->add;", "x[i] += 0;"))
mistake("convert", "decay without the exponential", (CONVERT, "x[i] = -expf(x[i]);", "x[i] = -x[i];"))
mistake("convert", "columns in their order", (CONVERT, "x[i] = spare[convert_place_before(c, i)];",
        "x[i] = spare[i];"))
mistake("convert", "rows of queries and keys moved too",
        (SHAPES35, "c.before = in_qkv ? 2 * (uint64_t)s->n_k * (uint64_t)s->dk : 0;", "c.before = 0;"))
mistake("convert", "a NextN norm without the 1",
        (SHAPES35, 'T_AS(ONE_MORE, is_nextn_layer, ELSEWHERE, "nextn.hnorm.weight"',
         'T_AS(AS_IS, is_nextn_layer, ELSEWHERE, "nextn.hnorm.weight"'))
mistake("convert", "gate and up of experts exchanged",
        (CONVERT, "*first = up ? it->t.ne[1] : 0;", "*first = up ? 0 : down ? 0 : it->t.ne[1];"))

# ---- Places where drawn mistakes were once seen by no test -----------------------------------

PULL, STR = "apps/server/models/api_ollama_pull.c", "base/str.c"

mistake("holes", "logprobs of a stream begin at its first token",
        ("apps/server/dialects/api_chat.c", "put_choice_logprobs(a, c, first_token, c->n_shown, o);",
         "put_choice_logprobs(a, c, 0, c->n_shown, o);"))
mistake("holes", "logprobs of a stream beside thoughts alone",
        ("apps/server/dialects/api_chat.c", "if (p->kind == PART_TEXT) put_choice_logprobs",
         "if (p->kind != PART_TEXT) put_choice_logprobs"))
mistake("holes", "rules that are empty by way of others are looked for once",
        ("text/grammar_trim.c", "l.nullable[i] = more = true;", "l.nullable[i] = true;"))
mistake("holes", "a pull's wait is over at once",
        (PULL, "const struct timespec until = clock_after_ms(POLL_MS);",
         "const struct timespec until = clock_after_ms(-POLL_MS);"))
mistake("holes", "a wait ends before it begins",
        ("base/clock.c", "clock_ns() + (int64_t)((ms", "clock_ns() - (int64_t)((ms"))
mistake("holes", "a pull outlives its client",
        (PULL, "return !should_stop(x) && !client_left(x->fd);", "return !should_stop(x);"))
mistake("holes", "a pull outlives its server",
        (PULL, "return !should_stop(x) && !client_left(x->fd);", "return !client_left(x->fd);"))
mistake("holes", "a commit without a line feed is none",
        ("apps/hub/cache.c", "if (n < 40) return false;", "if (n <= 40) return false;"))
mistake("holes", "a commit of 39 digits", ("apps/hub/cache.c", "if (n < 40) return false;",
        "if (n < 39) return false;"))
mistake("holes", "a tensor with the most dimensions",
        ("format/safetensors.c", "|| n > DIMS_MAX)", "|| n >= DIMS_MAX)"))
mistake("holes", "a tensor with more dimensions",
        ("format/safetensors.c", "|| n > DIMS_MAX)", "|| n > DIMS_MAX + 1)"))
mistake("holes", "an assistant with the most layers",
        (MTP_BIND, "s->n_layer > MTP_LAYERS_MAX)", "s->n_layer >= MTP_LAYERS_MAX)"))
mistake("holes", "an assistant with more layers",
        (MTP_BIND, "while (s->n_layer <= MTP_LAYERS_MAX &&",
         "while (s->n_layer < MTP_LAYERS_MAX &&"))
mistake("holes", "a text of an impossible length goes on",
        (STR, "|| s->n > SIZE_MAX / 4) { s->bad = true;", "|| s->n > SIZE_MAX / 4) {"))
mistake("holes", "a text without memory goes on",
        (STR, "if (!p) { s->bad = true;", "if (!p) {"))
mistake("holes", "one of two stores of scores",
        ("kv/pager.c", "if (!g->watch.score[side] || !g->watch.room[side])",
         "if (!g->watch.score[side] && !g->watch.room[side])"))
mistake("holes", "a segment without rows stays a parent",
        ("kv/snapshot.c", "while (parent && parent->from >= from)",
         "while (parent && parent->from > from)"))
mistake("holes", "the last gap is not looked at",
        ("text/compress.c", "for (size_t i = 1; i + 1 < u->n; i++) u->at[i].kept |=",
         "for (size_t i = 1; i + 2 < u->n; i++) u->at[i].kept |="))
mistake("holes", "a gap as long as its mark is left out",
        ("text/compress.c", "u->at[i].tokens <= GAP_TOKENS;", "u->at[i].tokens < GAP_TOKENS;"))
mistake("holes", "times of a cancelled prompt",
        ("engine/answers.c", "if (!s->answering) report_prefilled(&j->r);",
         "if (s->answering) report_prefilled(&j->r);"))
mistake("holes", "every new draft is tried in one round",
        ("spec/control.c", "tried = true;", ""))
mistake("holes", "a new draft takes rows that are not there",
        ("spec/control.c", "!tried && left > 0 && is_new(t, s)", "!tried && left >= 0 && is_new(t, s)"))

# ---- Pictures ------------------------------------------------------------------------------

MEDIA, MEDIA_NEW = "engine/media.c", "engine/media_new.c"
PATCHES, RESIZE, DECODE = "image/patches.c", "image/resize.c", "image/decode.c"
GEMMA_EYE, FLAT_EYE, QWEN_EYE = "model/gemma4_vision.c", "model/gemma4_vision_flat.c", "model/qwen_vision.c"
EYE, CLAMPED = "model/vision_run.c", "model/clamped.c"
BOTH = "m->media->two_way = !((const gemma4 *)m->core.impl)->n_ple;"
mistake("media", "tokens of a picture see each other in no model", (MEDIA, BOTH, "m->media->two_way = false;"))
mistake("media", "tokens of a picture see each other with per-layer embeddings", (MEDIA, BOTH, "m->media->two_way = true;"))
mistake("media", "tokens of a picture see each other in full layers too", (MEDIA, "if (m->core.kv[i].window)", "if (m->core.n_kv)"))
mistake("media", "a chunk cuts a picture", (MEDIA, "int64_t whole = media_whole(m, ids, rows, n);", "int64_t whole = rows < n ? rows : n;"))
mistake("media", "soft tokens are scaled like embeddings",
        ("model/gemma4.c", "op_embed(p, &g->embd, sqrtf((float)g->n_embd)),", "op_embed(p, &g->embd, 1),"),
        ("model/gemma4.c", "op_put_soft(p, s.x);", "op_put_soft(p, s.x); op_scale(p, s.x, sqrtf((float)g->n_embd), NULL);"))
mistake("media", "soft tokens begin a row late", ("engine/pass.c", "run->row0 = part->row0 + i;", "run->row0 = part->row0 + i + (run->n > 1);"))
mistake("media", "a second run of a picture begins with its first row",
        ("engine/media_work.c", "run->at = it->rows + (size_t)at * (size_t)m->core.n_embd;", "run->at = it->rows;"))
mistake("media", "another picture of the same size is the same", (MEDIA_NEW, "sha_put(&s, picture->rgb,", "sha_put(&s, head,"))
mistake("media", "another budget is the same picture", (MEDIA_NEW, "picture->height, g->width, g->height);", "picture->height, 0, 0);"))
mistake("media", "no token begins a picture", (MEDIA_NEW, "if (begin >= 0 && (k || begins))", "if (begin >= 0 && k)"))
mistake("media", "no token ends a picture", (MEDIA_NEW, "if (end >= 0 && (k + 1 < n_pieces || ends))", "if (end >= 0 && k + 1 < n_pieces)"))
mistake("media", "pooled rows are not scaled", (GEMMA_EYE, "op_pool(p, x, in->merged), sqrtf((float)g->n_embd), NULL)", "op_pool(p, x, in->merged), 1, NULL)"))
mistake("media", "pooled rows are not standardised", (GEMMA_EYE, "if (g->std_scale.n_in)", "if (g->std_scale.n_in < 0)"))
mistake("media", "ropes turn by rows first", (EYE, "r->axis[0][i] = v->rows_first ? row : column;", "r->axis[0][i] = row;"),
        (EYE, "r->axis[1][i] = v->rows_first ? column : row;", "r->axis[1][i] = column;"))
mistake("media", "Qwen's ropes turn by columns first", (EYE, "r->axis[0][i] = v->rows_first ? row : column;", "r->axis[0][i] = column;"),
        (EYE, "r->axis[1][i] = v->rows_first ? column : row;", "r->axis[1][i] = row;"))
mistake("media", "the tables of positions change places", (EYE, "id[0] = (float)column;", "id[0] = (float)row;"),
        (EYE, "id[1] = (float)(v->n_pos + row);", "id[1] = (float)(v->n_pos + column);"))
mistake("media", "the halves of a head turn as one", (GEMMA_EYE, "g->head_dim / 2, THETA, true, e)", "g->head_dim / 2, THETA, false, e)"))
mistake("media", "inputs of products are not clamped", (CLAMPED, "in = bounded ? op_clamp(p, x, w[i]->in_low, w[i]->in_high) : x;", "in = x;"))
mistake("media", "outputs of products are not clamped", (CLAMPED, "op_clamp_inplace(p, y[i], w[i]->out_low, w[i]->out_high);", ";"))
mistake("media", "a bound from below is the one from above", (CLAMPED, '(st = bind_bound(b, name, "output_min", &w->out_low))',
        '(st = bind_bound(b, name, "output_max", &w->out_low))'))
mistake("media", "scores are scaled", (GEMMA_EYE, "op_attend(p, q, kv, 1);", "op_attend(p, q, kv, 1 / sqrtf((float)g->head_dim));"))
mistake("media", "values are not normed", (GEMMA_EYE, ".v_norm = true,", ""))
mistake("media", "erf for the tanh of GELU", (GEMMA_EYE, "op_act_mul(p, gu[0], gu[1], ACT_GELU_TANH)", "op_act_mul(p, gu[0], gu[1], ACT_GELU_ERF)"))
mistake("media", "pixels are 0 to 1 for a tower", (GEMMA_EYE, "g->v.rule.mean[c] += 0.5f * g->v.rule.std[c]; g->v.rule.std[c] *= 0.5f;", ";"))
mistake("media", "12B: epsilon of the layer norms", (FLAT_EYE, "LAYER_EPS = 1e-5f;", "LAYER_EPS = 1e-6f;"))
mistake("media", "Qwen: tanh in the merger", (QWEN_EYE, "ACT_GELU_ERF", "ACT_GELU_TANH"))
mistake("media", "a picture fills its budget rounded up", (PATCHES, "int32_t cols = (int32_t)(f * width / token)", "int32_t cols = (int32_t)(f * width / token + 0.5)"))
mistake("media", "a strip has more tokens than the budget", (PATCHES, "cols = cols > rule->budget ? rule->budget : cols;\n    rows = rows > rule->budget ? rule->budget : rows;\n    g->width = cols * rule->patch * rule->merge;\n    g->height = rows * rule->patch * rule->merge;\n}\n\nstatic int32_t tokens_down",
        "g->width = cols * rule->patch * rule->merge;\n    g->height = rows * rule->patch * rule->merge;\n}\n\nstatic int32_t tokens_down"))
mistake("media", "native rounds sides up", (PATCHES, "int32_t cols = (int32_t)rint(width / token)", "int32_t cols = (int32_t)ceil(width / token)"))
mistake("media", "patches lie row by row", (PATCHES, "group = rule->grouped ? rule->merge : 1;", "group = 1;"))
mistake("media", "green is red", (PATCHES, "(size_t)(y0 + y) + (size_t)x0) + (size_t)c;", "(size_t)(y0 + y) + (size_t)x0) + (size_t)(c == 2);"))
mistake("media", "a sharper filter", (RESIZE, "const double a = -0.5;", "const double a = -0.75;"))
mistake("media", "weights are cut, not rounded", (RESIZE, "(int32_t)(v < 0 ? v - 0.5 : v + 0.5)", "(int32_t)v"))
mistake("media", "columns are never first", (RESIZE, "bool columns_first = height < m->height &&", "bool columns_first = height < 0 &&"))
mistake("media", "orientations above 4 keep their sides", (DECODE, "if (h->orientation >= 5) {", "if (h->orientation >= 6) {"))
mistake("media", "the words' pictures are one too high", ("apps/run_pictures.c", "count_kind(&found, found.n, is_sound(p)));",
        "count_kind(&found, found.n, is_sound(p)) + 1);"))
mistake("media", "a saved conversation lacks its pictures", ("apps/run_pictures.c", "base64_put(&data, p->bytes, p->n);", ""))
mistake("media", "native is the default", ("apps/mmproj_options.c", "*n = native ?", "*n = native || !text ?"))

# ---- Sound ----------------------------------------------------------------------------------

MEL, RESAMPLE, EAR, EARS, AUDIO = "sound/mel.c", "sound/resample.c", "model/gemma4_audio.c", "engine/ears.c", "model/audio.c"
mistake("sound", "the mel scale of Slaney's constant", (MEL, "2595.0 * log10(1.0 + hz / 700.0)", "1127.0 * log(1.0 + hz / 700.0) * 1.001"))
mistake("sound", "edges from 20 Hz", (MEL, "to_hz(top * i / (MEL_BINS + 1));", "to_hz(32 + (top - 32) * i / (MEL_BINS + 1));"))
mistake("sound", "a symmetric window", (MEL, "cos(2 * PI * i / MEL_FRAME)", "cos(2 * PI * i / (MEL_FRAME - 1))"))
mistake("sound", "powers for magnitudes", (MEL, "double va = 0.5 * sqrt(ra * ra + ia * ia)", "double va = 0.25 * (ra * ra + ia * ia)"))
mistake("sound", "pre-emphasis", (MEL, "(double)x[k] * (double)table.window[i];\n        if",
        "((double)x[k] - 0.97 * (k ? (double)x[k - 1] : 0)) * (double)table.window[i];\n        if"))
mistake("sound", "the floor is a maximum", (MEL, "first[m] = (float)log(a[m] + 1e-3);", "first[m] = (float)log(fmax(a[m], 1e-3));"))
mistake("sound", "no silence before the first frame", (MEL, "int64_t k = at + i - MEL_FRAME / 2;", "int64_t k = at + i;"))
mistake("sound", "a last frame more", (MEL, "longer = MEL_FRAME + 1;", "longer = MEL_FRAME;"))
mistake("sound", "resampling folds", (RESAMPLE, "double lower = (double)(r->up < r->down ? r->up : r->down)", "double lower = (double)(r->up < r->down ? r->down : r->down)"))
mistake("sound", "a phase to the other side", (RESAMPLE, "- (double)p / (double)r->up) * zero;", "+ (double)p / (double)r->up) * zero;"))
mistake("sound", "whole residuals of the units", (EAR, "op_rms_norm_inplace(p, y, &f->post_norm, g->eps), 0.5f, NULL)", "op_rms_norm_inplace(p, y, &f->post_norm, g->eps), 1, NULL)"))
mistake("sound", "13 rows are seen", (EAR, "enum { N_NEAR = 12 };", "enum { N_NEAR = 13 };"))
mistake("sound", "11 rows are seen", (EAR, "enum { N_NEAR = 12 };", "enum { N_NEAR = 11 };"))
mistake("sound", "no cap of scores", (EAR, "CAP = 50;", "CAP = 5000;"))
mistake("sound", "keys are not scaled", (EAR, "(float)(log(1 + exp(1.0)) / LN_2)", "1"))
mistake("sound", "distances are scaled like keys", ("backend/cpu/audio_ref.c", "(double)mat_row(far, d)[i]);", "(double)rule->k_factor * (double)mat_row(far, d)[i]);"))
mistake("sound", "distances count from the far end", (AUDIO, "double angle = d *", "double angle = (a->n_near - 1 - d) *"))
mistake("sound", "cosines before sines", (AUDIO, "x[d * a->n_embd + i] = (float)sin(angle);\n            x[d * a->n_embd + half + i] = (float)cos(angle);",
        "x[d * a->n_embd + i] = (float)cos(angle); x[d * a->n_embd + half + i] = (float)sin(angle);"))
mistake("sound", "convolutions of layers see a later row", ("backend/cpu/audio_ref.c", "mat_row(x, r - (n - 1) + j)[c];", "mat_row(x, r - (n - 1) + j + (r + 1 < y.rows && j == n - 1))[c];"))
mistake("sound", "no border before the first time", ("backend/cpu/audio_ref.c", "int32_t t = 2 * (first + r / places) - 1,", "int32_t t = 2 * (first + r / places),"))
mistake("sound", "mel before time in kernels", ("backend/cpu/audio_ref.c", "to[(c * 3 + a) * 3 + b]", "to[(c * 3 + b) * 3 + a]"))
mistake("sound", "gate and value change places", (EAR, "mat_columns(u, n, n), mat_columns(u, 0, n)", "mat_columns(u, 0, n), mat_columns(u, n, n)"))
mistake("sound", "the swapped norms are not swapped", (EAR, 'W(conv_norm), "conv_norm.weight"', 'W(taps_norm), "conv_norm.weight"'),
        (EAR, 'W(taps_norm), "norm_conv.weight"', 'W(conv_norm), "norm_conv.weight"'))
mistake("sound", "a band of the convolution is skipped over", (EAR, "op_unfold(p, x, t, n)", "op_unfold(p, x, 0, n)"))
mistake("sound", "other sounds of the same length are the same", (MEDIA_NEW, "sha_put(&s, x, (size_t)n * sizeof *x);", ""))
mistake("sound", "sounds are blocks", (MEDIA, "x->span[x->n++] = sound->n_pieces ?", "x->span[x->n++] = sound->n_pieces > (1 << 20) ?"),
        (MEDIA, "int32_t merge = vision_of(&x->tower)->rule.merge;", "int32_t merge = vision_of(&x->tower)->rule.merge; image_grid whole = *g; if (sound->n_pieces) whole.cols = g->n_tokens * merge, whole.rows = merge; g = &whole;"))
mistake("sound", "pieces all begin with the first", (EARS, "samples + (size_t)k * PIECE", "samples"))

# ---- Tests that show themselves fewer shapes ---------------------------------------------------

ATTEND, PAGES, BATCH, CACHE = "backend/cpu/attend.c", "backend/cpu/pages.c", "engine/batch.c", "kv/cache.c"

mistake("brief", "a tile of rows of two sequences",
        (ATTEND, "t.n < a->tile_rows && rs->seq[t.r0 + t.n] == rs->seq[t.r0])", "t.n < a->tile_rows)"))
mistake("brief", "sums of blocks are added without their scale",
        (ATTEND, "*sum = *sum * co + block_sum * cx;", "*sum = *sum + block_sum * cx;"))
mistake("brief", "the range of a tile is that of its last row",
        (ATTEND, "*lo = s.lo < *lo ? s.lo : *lo;", "*lo = s.lo;"))
mistake("brief", "odd rows of a tile of bf16 products are even ones",
        ("backend/cpu/matmul.c", "const void *x = x_row(j, r + a); xs[a] = (const float *)x + i; pairs",
         "const void *x = x_row(j, r + a / 2 * 2); xs[a] = (const float *)x + i; pairs"))
mistake("brief", "keys of one stream stay rotated",
        (PAGES, "if (v->k_rot) num_unrotate(x, v->head_dim);", ""))
mistake("brief", "keys of a page of one stream have its first position",
        (PAGES, ".pos + t % KV_PAGE : t;", ".pos : t;"))
mistake("brief", "the last key of a page is left out",
        (PAGES, "for (int32_t k = 0; k < KV_PAGE; k++) { read_key", "for (int32_t k = 0; k < KV_PAGE - 1; k++) { read_key"))
mistake("brief", "a batch without memory for what it shows",
        (BATCH, "&& b->running && b->shown)", "&& b->running)"))
mistake("brief", "a job without memory for its tokens",
        (BATCH, "if (!j->ids || (n_bias", "if ((n_bias"))
mistake("brief", "a window needs a key less after a rewind",
        (CACHE, "int64_t needed = n_past - v->window + 1;", "int64_t needed = n_past - v->window + 2;"))
mistake("brief", "a rewind asks for the rows of now, not for those that were written",
        (CACHE, "int64_t oldest = c->n_written - v->n_slots", "int64_t oldest = c->n_past - v->n_slots"))
mistake("brief", "drafts may lose more than is said", ("spec/control.c", "purse_cap = 5, purse_most = 8", "purse_cap = 12, purse_most = 16"))
mistake("brief", "a small purse stops good drafters", ("spec/control.c", "purse_cap = 5, purse_most = 8", "purse_cap = 1, purse_most = 1"))
