/* audio_ref.c - the definitions of the ops of audio towers. */
#include "backend/cpu/cpu_int.h"
#include "backend/cpu/table_ops_int.h"

#include <math.h>

/* Moves numbers, so the fast device has no other one. */
void cpu_unfold(pass *p, mat y, mat x, int32_t first)
{
    int32_t places = (x.heads + 1) / 2;
    if (p->dry)
        return;
    for (int32_t r = 0; r < y.rows; r++) {
        int32_t t = 2 * (first + r / places) - 1, f = 2 * (r % places) - 1;
        float *to = mat_row(y, r);
        for (int32_t a = 0; a < 3; a++)
            for (int32_t b = 0; b < 3; b++) {
                bool inside = t + a >= 0 && t + a < x.rows && f + b >= 0 && f + b < x.heads;
                const float *from = inside ? mat_row(x, t + a) + (f + b) * x.cols : NULL;
                for (int32_t c = 0; c < x.cols; c++)
                    to[(c * 3 + a) * 3 + b] = from ? from[c] : 0;
            }
    }
}

void cpu_ref_depthwise(pass *p, mat y, mat x, const weight *w)
{
    int32_t n = w->n_in;
    if (p->dry)
        return;
    for (int32_t r = 0; r < y.rows; r++)
        for (int32_t c = 0; c < y.cols; c++) {
            const float *tap = weight_row(w, 0, c);
            double sum = 0;
            for (int32_t j = n - 1 - r > 0 ? n - 1 - r : 0; j < n; j++)
                sum += (double)tap[j] * (double)mat_row(x, r - (n - 1) + j)[c];
            mat_row(y, r)[c] = (float)sum;
        }
}

void cpu_ref_near(pass *p, mat o, mat q, mat k, mat v, mat far, const near_rule *rule)
{
    const float *scale = rule->scale->data;
    if (p->dry)
        return;
    for (int32_t r = 0; r < q.rows; r++)
        for (int32_t h = 0; h < q.heads; h++) {
            int32_t n = r + 1 < rule->n_near ? r + 1 : rule->n_near, at = h * q.cols;
            double s[NEAR_MAX], sum = 0, most = -INFINITY;
            for (int32_t d = 0; d < n; d++) {
                double dot = 0;
                for (int32_t i = at; i < at + q.cols; i++)
                    dot += (double)rule->c * (double)scale[i - at] * (double)mat_row(q, r)[i] *
                           ((double)rule->k_factor * (double)mat_row(k, r - d)[i] +
                            (double)mat_row(far, d)[i]);
                s[d] = (double)rule->cap * tanh(dot / (double)rule->cap);
                most = fmax(most, s[d]);
            }
            for (int32_t d = 0; d < n; d++)
                sum += s[d] = exp(s[d] - most);
            for (int32_t i = at; i < at + q.cols; i++) {
                double y = 0;
                for (int32_t d = 0; d < n; d++)
                    y += s[d] * (double)mat_row(v, r - d)[i];
                mat_row(o, r)[i] = (float)(y / sum);
            }
        }
}
