/* table_ops_int.h - the ops of the CPU device by the file that has them. What each means is in
 * backend/ops.h; ref.c defines it. */
#ifndef BACKEND_CPU_TABLE_OPS_INT_H
#define BACKEND_CPU_TABLE_OPS_INT_H

#include "backend/ops.h"

/* small.c */
void cpu_embed(pass *p, mat y, const weight *w, float scale);
void cpu_embed_at(pass *p, mat y, mat ids, const weight *w, float scale);
void cpu_rms_norm(pass *p, mat *y, mat x, const weight *w, float eps);
void cpu_add_rms_norm(pass *p, mat x, mat y, const weight *w, float eps);
void cpu_act_mul(pass *p, mat *y, mat a, mat b, act_kind act);
void cpu_add(pass *p, mat y, mat a, mat b);
void cpu_scale(pass *p, mat x, float c, const weight *w);
void cpu_softcap(pass *p, mat x, float cap, const int32_t *ids, int32_t n_ids);
void cpu_rope(pass *p, mat x, const rope *f);
void cpu_clamp(pass *p, mat y, mat x, float low, float high);
void cpu_pool(pass *p, mat y, mat x, int32_t n);
void cpu_standardize(pass *p, mat x, const weight *shift, const weight *scale);
void cpu_layer_norm(pass *p, mat y, mat x, const weight *w, const weight *b, float eps);
void cpu_act(pass *p, mat x, act_kind act);
void cpu_embed_mix(pass *p, mat y, mat ids, mat share, const weight *w);
/* Turns the head x by cosines and sines of f's pairs. */
void cpu_rotate(const cpu_kernels *k, const rope *f, float *x, const float *c, const float *s);
void cpu_kv_store(pass *p, const kv_view *kv, mat k, mat v);
void cpu_gather(pass *p, mat y, mat x, const int32_t *row);
void cpu_copy(pass *p, mat y, mat x);
void cpu_route(pass *p, routing r, mat logits, const route_rule *rule);
/* audio_ref.c: the definitions, and the one of two that moves numbers alone; audio.c */
void cpu_unfold(pass *p, mat y, mat x, int32_t first);
void cpu_ref_depthwise(pass *p, mat y, mat x, const weight *w);
void cpu_ref_near(pass *p, mat o, mat q, mat k, mat v, mat far, const near_rule *rule);
void cpu_depthwise(pass *p, mat y, mat x, const weight *w);
void cpu_near(pass *p, mat o, mat q, mat k, mat v, mat far, const near_rule *rule);
/* best.c */
void cpu_best(pass *p, mat y, mat x);
/* matmul.c */
void cpu_matmul(pass *p, mat y, mat *x, const weight *w);
void cpu_glu(pass *p, mat *y, mat x, const weight *gate, const weight *up, act_kind act);
void cpu_moe_glu(pass *p, mat *y, mat x, routing *r, const weight *gate, const weight *up,
                 act_kind act);
void cpu_moe_down(pass *p, mat y, mat x, routing r, const weight *down);
void cpu_moe_matmul(pass *p, mat y, mat *x, routing r, const weight *w);
/* ref.c: a few numbers of a row have no faster way */
void cpu_renumber(pass *p, mat x, routing r, const int32_t *list, int32_t n_list, int32_t n);
/* recur_ref.c: the definition; recur.c */
void cpu_ref_conv(pass *p, mat y, mat x, const weight *w, const recur_view *rv);
void cpu_ref_delta(pass *p, mat o, mat c, mat a, mat b, const delta_gate *g, const recur_view *rv);
void cpu_ref_settle(device *d, const recur_view *v, const recur_base *base, int32_t n,
                    const recur_seq *s);
void cpu_conv(pass *p, mat y, mat x, const weight *w, const recur_view *rv);
void cpu_delta(pass *p, mat o, mat c, mat a, mat b, const delta_gate *g, const recur_view *rv);
void cpu_settle(device *d, const recur_view *v, const recur_base *base, int32_t n,
                const recur_seq *s);
/* tail.c: the definition, and the same in blocks of keys */
void cpu_ref_tail(pass *p, mat q, const kv_view *kv, const rope *r, float scale);
void cpu_tail(pass *p, mat q, const kv_view *kv, const rope *r, float scale);
/* attend.c */
void cpu_attend(pass *p, mat *o, mat q, const kv_view *kv, float scale);
/* ref.c: what the definitions share. The rotation's matrix, x rotated back, and a key of one stream
 * made of its value. */
void cpu_ref_fill_back(double (*back)[NUM_ROT_GROUP]);
void cpu_ref_unrotate(double (*back)[NUM_ROT_GROUP], double *x, int32_t n);
void cpu_ref_make_key(const kv_view *kv, int64_t pos, double *x);
/* pages_ref.c: the definition; pages.c */
void cpu_ref_sum_pages(device *d, const kv_view *v, const kv_base *base, const page_sums *to,
                       int32_t first, int32_t row, int32_t n);
void cpu_sum_pages(device *d, const kv_view *v, const kv_base *base, const page_sums *to,
                   int32_t first, int32_t row, int32_t n);
void cpu_ref_watch_pages(pass *p, mat q, const kv_view *kv, float scale, const page_watch *w);
void cpu_watch_pages(pass *p, mat q, const kv_view *kv, float scale, const page_watch *w);
void cpu_ref_rescore_pages(device *d, const kv_view *v, const kv_base *base, const page_rescore *l);
void cpu_rescore_pages(device *d, const kv_view *v, const kv_base *base, const page_rescore *l);
/* The bounds of a page (page_sums in backend/ops.h) whose keys lie between lo and hi: [head_dim]
 * each. */
void cpu_put_bounds(const page_sums *to, const kv_view *v, int32_t head, int32_t row,
                    const float *lo, const float *hi);

#endif
