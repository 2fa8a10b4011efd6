// The products with a table of logits that all users have, for many tokens of each. Logits never reach memory.
// logits.cu stands before this text. The table and the outputs lie in memory as they do in shared memory: in pieces.
// Logits, levels and biases are in base 2.
#define PIECES (ROWS * WIDE * 2)
#define OUTPUTS (T * OUT * 2)

// ------------------------------------------------------------------------------------------------- first pass
// grid (users x steps, parts), 256 threads: two warpgroups with 64 rows each at a time. meta: vocabulary, blocks of 128 rows of
// a part, steps of each user, steps to do. Of each token and part: the offset, the sum of 2^(logit - offset), that sum of rows.
extern "C" __global__ void __launch_bounds__(256, BLOCKS <= 2 ? 2 : 1) one_scores_(
    const bf* outputs, const bf* table, const int* meta, IF_BIASED(const float* bias,)
    float* most_out, float* total_out, float* mean_out) {
  unsigned char* os = raw; unsigned char* ps = os + OUTPUTS; unsigned char* both = ps + 2 * ROWS * T * 2;
  __shared__ float offset[T], rise[T];
  __shared__ int highest[T];
  __shared__ __align__(8) uint64_t bars[2];
  const Thread me;
  const auto [tid, lane, g, q, team, warp] = me;
  const int V = meta[0], all = (V + 2 * ROWS - 1) / (2 * ROWS), first = blockIdx.y * meta[1], tiles = min(meta[1], all - first);
  if ((int)blockIdx.x % meta[2] >= meta[3]) return;
  if (tid < 2) { bar_init(&bars[tid]); bar_ready(); }
  __syncthreads();
  if (tid == 0) {
    bar_expect(&bars[0], OUTPUTS + 2 * PIECES);
    bulk_copy(os, outputs + (size_t)blockIdx.x * T * OUT, OUTPUTS, &bars[0]);
    bulk_copy(both, table + (size_t)first * 2 * ROWS * WIDE, 2 * PIECES, &bars[0]);
  }
  for (int i = tid; i < T; i += 256) { offset[i] = 0; highest[i] = ordered(LOWEST); }
  Sums mean;
  float total[T / 4];
#pragma unroll
  for (int i = 0; i < T / 4; i++) total[i] = 0;
#pragma unroll 1
  for (int t = 0; t < tiles; t++) {
    const unsigned char* es = both + (t & 1) * 2 * PIECES;
    __syncthreads();
    if (tid == 0 && t + 1 < tiles) {
      bar_expect(&bars[(t + 1) & 1], 2 * PIECES);
      bulk_copy(both + ((t + 1) & 1) * 2 * PIECES, table + (size_t)(first + t + 1) * 2 * ROWS * WIDE, 2 * PIECES, &bars[(t + 1) & 1]);
    }
    bar_wait(&bars[t & 1], (t >> 1) & 1);
    const int v = (first + t) * 2 * ROWS + ROWS * team + 16 * warp + g;  // and 8 more
    float s[T / 2];
    make_logits<WIDE, OUT>(es + team * PIECES, os, s);
    float shift[2] = {0, 0};
#if BIASED
    if (v < V) shift[0] = bias[v];
    if (v + 8 < V) shift[1] = bias[v + 8];
#endif
    const bool raised = subtract_offset(me, s, shift, v, V, t == 0, offset, rise, highest);
    add_to_totals(me, s, ps, t == 0, raised, rise, total, mean);
    add_rows<WIDE>(me, es, t == 0, ps, mean);
  }
  __syncthreads();
  const size_t place = (size_t)blockIdx.x * gridDim.y + blockIdx.y;
  put_totals(me, (float*)ps, offset, total, place, most_out, total_out);
  each_sum(me, mean, [&](float x, int column, int token) { if (column < E) mean_out[(place * T + token) * E + column] = x; });
}

// ------------------------------------------------------------------------------------------------- second pass
// grid (blocks of 128 rows, users), 256 threads: two warpgroups with 64 rows each, over all tokens. meta as above. about: of each
// step, the level and the share of every token, and its target.
extern "C" __global__ void __launch_bounds__(256, CHUNKS * CHUNK <= 128 ? 2 : 1) one_gradient_(
    const bf* outputs, const bf* table, const int* meta, const float* about, IF_BIASED(const float* bias,)
    float* gradient IF_BIASED(, float* of_bias)) {
  constexpr int ABOUT = 3 * T * 4, STEP = OUTPUTS + ABOUT;
  const int user = blockIdx.y;
  const auto [tid, lane, g, q, team, warp] = Thread();
  unsigned char* steps = raw; unsigned char* es = raw + 2 * STEP;
  __shared__ __align__(8) uint64_t bars[2];
  const int V = meta[0], all = meta[2], todo = meta[3], v = (2 * blockIdx.x + team) * ROWS + 16 * warp + g;  // and 8 more
  if (tid < 2) { bar_init(&bars[tid]); bar_ready(); }
  __syncthreads();
  auto fetch = [&](int step) {
    const size_t from = (size_t)user * all + step;
    uint64_t* bar = &bars[step & 1];
    unsigned char* to = steps + (step & 1) * STEP;
    bar_expect(bar, STEP + (step == 0 ? 2 * PIECES : 0));
    bulk_copy(to, outputs + from * T * OUT, OUTPUTS, bar);
    bulk_copy(to + OUTPUTS, about + from * 3 * T, ABOUT, bar);
    if (step == 0) bulk_copy(es, table + (size_t)blockIdx.x * 2 * ROWS * WIDE, 2 * PIECES, bar);
  };
  if (tid == 0 && todo > 0) fetch(0);
  if (tid == 0 && todo > 1) fetch(1);
  float shift[2] = {0, 0}, along[2] = {0, 0}, c[CHUNKS][CHUNK / 2];
#if BIASED
  if (v < V) shift[0] = bias[v];
  if (v + 8 < V) shift[1] = bias[v + 8];
#endif
#pragma unroll
  for (int m = 0; m < CHUNKS; m++)
#pragma unroll
    for (int i = 0; i < CHUNK / 2; i++) c[m][i] = 0;
#pragma unroll 1
  for (int step = 0; step < todo; step++) {
    const unsigned char* os = steps + (step & 1) * STEP;
    const float* level = (const float*)(os + OUTPUTS);
    const float* share = level + T;
    const int* targets = (const int*)(share + T);
    bar_wait(&bars[step & 1], (step >> 1) & 1);
    float s[T / 2];
    uint32_t errors[T / 4];
    make_logits<WIDE, OUT>(es + team * PIECES, os, s);
#pragma unroll
    for (int j = 0; j < T / 8; j++) {
      const int token = 8 * j + 2 * q;
      float e[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int h = i >> 1, k = token + (i & 1);
        float x = ex2(s[4 * j + i] + shift[h] - level[k]);
        if (targets[k] == v + 8 * h) x -= 1;
        e[i] = share[k] > 0 ? x * share[k] : 0;
        along[h] += e[i];
      }
      errors[2 * j] = pack(LN2 * e[0], LN2 * e[1]); errors[2 * j + 1] = pack(LN2 * e[2], LN2 * e[3]);
    }
    multiply_errors<OUT>(errors, os, true, c);
    __syncthreads();
    if (tid == 0 && step + 2 < todo) fetch(step + 2);
  }
#if BIASED
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const float x = quad(along[h]);
    if (q == 0 && v + 8 * h < V) of_bias[(size_t)user * V + v + 8 * h] = x;
  }
#endif
#pragma unroll
  for (int m = 0; m < CHUNKS; m++)
#pragma unroll
    for (int j = 0; j < CHUNK / 8; j++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int column = CHUNK * m + 8 * j + 2 * q;
        if (v + 8 * h < V && column < E)
          *(float2*)(gradient + ((size_t)user * V + v + 8 * h) * E + column) = make_float2(c[m][4 * j + 2 * h], c[m][4 * j + 2 * h + 1]);
      }
}
