// The products with a table of logits for any row size: each user has received + scale * delta. Logits never reach memory.
// STORED (the kind of delta between steps: float or half), UNIT (rows at norm 1), BIASED and COMPARED (with what another model
// predicts) are defined before this text, and logits.cu stands before it. E is a multiple of 16. Logits, levels and biases are in
// base 2. A scale below 0 marks a user who has finished: every kernel returns at once, and nobody reads what it would have written.
typedef STORED S;

// ------------------------------------------------------------------------------------------------- first pass
#define IN_ROW (E / 8)                             // pieces of 8 columns
#define OF_LANE ((IN_ROW + 3) / 4)                 // of them, for each of the four lanes of a row
#define ROW (E * (int)sizeof(S))                   // bytes of a row of delta
#define KEPT (ROW / 2)                             // columns of bf16 that take as many
#define TILE (ROWS * ROW)
#define TURN (IN_ROW % 8 == 0 ? 0 : IN_ROW % 4 == 0 ? 1 : 2)  // after so many rows (2^TURN) a bank of shared memory comes again

// Eight rows at a time for a warp: a lane has row lane % 8, and every fourth piece of it. Where rows have the same banks, their pieces
// are taken in another order: so eight rows are read without bank conflicts, where they lie one after the other.
struct Rows {
  uint4 x[OF_LANE];
  int row = threadIdx.x & 7, turned = row >> TURN, start = ((threadIdx.x & 31) >> 3) ^ (turned & 3);
  int even = start + (TURN ? 0 : turned & 4), odd = start - (TURN ? 0 : turned & 4);

  __device__ __forceinline__ bool has(int i) const { return 4 * i + 3 < IN_ROW || start + 4 * i < IN_ROW; }
  __device__ __forceinline__ int piece(int i) const {
    const int k = (i & 1 ? odd : even) + 4 * i;
    return 4 * i + 3 < IN_ROW ? k : min(k, IN_ROW - 1);
  }
  // `there` of the rows exist; others are read where the last one is.
  __device__ __forceinline__ void read(const bf* received, int there) {
    received += (ptrdiff_t)min(row, there - 1) * E;
#pragma unroll
    for (int i = 0; i < OF_LANE; i++) x[i] = *(const uint4*)(received + 8 * piece(i));
  }
  __device__ __forceinline__ void blend(float (&y)[8], int i, const unsigned char* rows, float scale) const {
    const float2 a = unpack(x[i].x), b = unpack(x[i].y), c = unpack(x[i].z), d = unpack(x[i].w);
    wide8(y, (const S*)(rows + row * ROW) + 8 * piece(i));
    y[0] = fmaf(scale, y[0], a.x); y[1] = fmaf(scale, y[1], a.y); y[2] = fmaf(scale, y[2], b.x); y[3] = fmaf(scale, y[3], b.y);
    y[4] = fmaf(scale, y[4], c.x); y[5] = fmaf(scale, y[5], c.y); y[6] = fmaf(scale, y[6], d.x); y[7] = fmaf(scale, y[7], d.y);
  }
  static __device__ __forceinline__ float inverse(float squares) {
    squares += __shfl_xor_sync(~0u, squares, 8); squares += __shfl_xor_sync(~0u, squares, 16);
    return rsqrtf(fmaxf(squares, 1e-24f));
  }
  // From received + scale * delta, where delta lies in `rows`, to what is multiplied, in pieces in the same place; and if compared, the
  // rows as received into `before`. Rows that do not exist become 0.
  __device__ __forceinline__ void make(unsigned char* rows, float scale, int there, unsigned char* before) {
    float k = 1;
    if (COMPARED) {
      float j = 1, squares = 0;
#pragma unroll
      for (int i = 0; UNIT && i < OF_LANE; i++) {
        const float2 a = unpack(x[i].x), b = unpack(x[i].y), c = unpack(x[i].z), d = unpack(x[i].w);
        if (has(i)) squares += (a.x * a.x + a.y * a.y) + (b.x * b.x + b.y * b.y) + (c.x * c.x + c.y * c.y) + (d.x * d.x + d.y * d.y);
      }
      if (UNIT) j = inverse(squares);
#pragma unroll
      for (int i = 0; i < OF_LANE; i++) {
        const float2 a = unpack(x[i].x), b = unpack(x[i].y), c = unpack(x[i].z), d = unpack(x[i].w);
        const uint4 y = make_uint4(pack(j * a.x, j * a.y), pack(j * b.x, j * b.y), pack(j * c.x, j * c.y), pack(j * d.x, j * d.y));
        *(uint4*)(before + in_pieces<E>(row, 8 * piece(i))) = y;
      }
    }
    float y[8], squares = 0;
#pragma unroll
    for (int i = 0; UNIT && i < OF_LANE; i++) {
      blend(y, i, rows, scale);
#pragma unroll
      for (int w = 0; w < 8; w++) if (has(i)) squares = fmaf(y[w], y[w], squares);
    }
    if (UNIT) k = inverse(squares);
#pragma unroll
    for (int i = 0; i < OF_LANE; i++) {
      blend(y, i, rows, scale);
      x[i] = make_uint4(pack(k * y[0], k * y[1]), pack(k * y[2], k * y[3]), pack(k * y[4], k * y[5]), pack(k * y[6], k * y[7]));
    }
    if (there < 8)
#pragma unroll
      for (int i = 0; i < OF_LANE; i++) if (row >= there) x[i] = make_uint4(0, 0, 0, 0);
    __syncwarp();  // all of the rows are read
#pragma unroll
    for (int i = 0; i < OF_LANE; i++) *(uint4*)(rows + in_pieces<KEPT>(row, 8 * piece(i))) = x[i];
  }
};

// grid (parts, users), 384 threads: two warpgroups (teams) multiply 64 rows each at a time, a third one makes the next rows meanwhile.
// meta: vocabulary, rows of a part. Of each token and part: the offset, the sum of 2^(logit - offset), that sum of rows; and the sum
// of rows by the other model's predictions.
extern "C" __global__ void __launch_bounds__(384, 1) table_scores_(
    const bf* outputs, const bf* received, const S* delta, const float* scale_, const int* meta,
    IF_BIASED(const float* bias,) IF_COMPARED(const bf* their_outputs, const float* their_level, IF_BIASED(const float* their_bias,))
    float* most_out, float* total_out, float* mean_out IF_COMPARED(, float* other_out)) {
  constexpr int OUTPUTS = T * E * 2, PROBABILITIES = 2 * ROWS * T * 2, BOTH = 2 * TILE, BEFORE = 2 * ROWS * E * 2;
  unsigned char* os = raw; unsigned char* both = os + OUTPUTS; unsigned char* ps = both + 2 * BOTH;
  unsigned char* os2 = ps + PROBABILITIES; unsigned char* es2 = os2 + COMPARED * OUTPUTS; unsigned char* ps2 = es2 + COMPARED * 2 * BEFORE;
  __shared__ float offset[T], rise[T], level2[T];
  __shared__ int highest[T];
  __shared__ __align__(8) uint64_t arrived[2], made[2];  // delta of 128 rows; these rows as they are multiplied
  const int user = blockIdx.y;
  const Thread me;
  const auto [tid, lane, g, q, team, warp] = me;
  const int V = meta[0], rows = meta[1], first = blockIdx.x * rows, last = min(V, first + rows), tiles = (last - first + 2 * ROWS - 1) / (2 * ROWS);
  const float scale = scale_[user];
  if (scale < 0) return;
  if (tid < 2) { bar_init(&arrived[tid]); bar_init(&made[tid]); bar_ready(); }
  __syncthreads();
  const S* from = delta + ((size_t)user * V + first) * E;
  auto fetch = [&](int t) {
    const int bytes = min(2 * ROWS, last - first - 2 * ROWS * t) * ROW;
    bar_expect(&arrived[t & 1], bytes);
    bulk_copy(both + (t & 1) * BOTH, from + (size_t)t * 2 * ROWS * E, bytes, &arrived[t & 1]);
  };
  if (tid == 0) { fetch(0); if (tiles > 1) fetch(1); }
  if (team == 2) {  // 32 rows a warp; while eight are made, the next eight come as received
    fewer_registers<136>();
    const int own = first + 32 * warp;
    Rows one, two;
    one.read(received + (size_t)own * E, last - own);
#pragma unroll 1
    for (int t = 0; t < tiles; t++) {
      const int v0 = own + 2 * ROWS * t;
      unsigned char *at_ = both + (t & 1) * BOTH + 32 * warp * ROW, *before = es2 + (t & 1) * BEFORE + 32 * warp * E * 2;
      bar_wait(&arrived[t & 1], (t >> 1) & 1);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int now = v0 + 8 * i, next = i < 3 ? now + 8 : min(v0 + 2 * ROWS, last - 1);  // at the end, the last row once more
        Rows &mine = i & 1 ? two : one, &coming = i & 1 ? one : two;
        coming.read(received + (size_t)next * E, last - next);
        mine.make(at_ + 8 * i * ROW, scale, last - now, before + 8 * i * E * 2);
      }
      fence_async();
      warpgroup_sync(team);
      if (tid == 256) bar_arrive(&made[t & 1]);
    }
    return;
  }
  more_registers<184>();
  load_outputs<E>(os, outputs + (size_t)user * T * E);
  IF_COMPARED(load_outputs<E>(os2, their_outputs + (size_t)user * T * E);)
  for (int i = tid; i < T; i += 256) {
    offset[i] = 0; highest[i] = ordered(LOWEST);
    IF_COMPARED(level2[i] = their_level[user * T + i];)
  }
  fence_async();
  pair_sync();
  Sums mean;
  IF_COMPARED(Sums other;)
  float total[T / 4];
#pragma unroll
  for (int i = 0; i < T / 4; i++) total[i] = 0;
#pragma unroll 1
  for (int t = 0; t < tiles; t++) {
    const int v0 = first + 2 * ROWS * t + ROWS * team, mine = last - v0, r = 16 * warp + g;  // rows of this warpgroup, it has 64 at most; r and 8 more
    const unsigned char* es = both + (t & 1) * BOTH;
    bar_wait(&made[t & 1], (t >> 1) & 1);
    float s[T / 2];
#if COMPARED
    make_logits<E, E>(es2 + (t & 1) * BEFORE + team * ROWS * E * 2, os2, s);
    {
      float shift[2] = {0, 0};
#if BIASED
      if (r < mine) shift[0] = their_bias[v0 + r];
      if (r + 8 < mine) shift[1] = their_bias[v0 + r + 8];
#endif
#pragma unroll
      for (int j = 0; j < T / 8; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const bool there = r + 8 * h < mine;
          const float a = there ? ex2(s[4 * j + 2 * h] + shift[h] - level2[8 * j + 2 * q]) : 0;
          const float b = there ? ex2(s[4 * j + 2 * h + 1] + shift[h] - level2[8 * j + 2 * q + 1]) : 0;
          *(uint32_t*)(ps2 + in_pieces<T>(ROWS * team + r + 8 * h, 8 * j + 2 * q)) = pack(a, b);
        }
    }
#endif
    make_logits<KEPT, E>(es + team * TILE, os, s);
    float shift[2] = {0, 0};
#if BIASED
    if (r < mine) shift[0] = bias[(size_t)user * V + v0 + r];
    if (r + 8 < mine) shift[1] = bias[(size_t)user * V + v0 + r + 8];
#endif
    const bool raised = subtract_offset(me, s, shift, r, mine, t == 0, offset, rise, highest);
    add_to_totals(me, s, ps, t == 0, raised, rise, total, mean);
    add_rows<KEPT>(me, es, t == 0, ps, mean IF_COMPARED(, ps2, other));
    pair_sync();
    if (tid == 0 && t + 2 < tiles) fetch(t + 2);
  }
  const size_t place = (size_t)user * gridDim.x + blockIdx.x;
  put_totals(me, (float*)ps, offset, total, place, most_out, total_out);
  each_sum(me, mean, [&](float x, int column, int token) { if (column < E) mean_out[(place * T + token) * E + column] = x; });
  IF_COMPARED(each_sum(me, other, [&](float x, int column, int token) { if (column < E) other_out[(place * T + token) * E + column] = x; });)
}

// ------------------------------------------------------------------------------------------------- second pass
#define TEAMS (COMPARED ? 3 : 4)                   // warpgroups: one waits for memory while others multiply
#define THIRTIES ((E + 31) / 32)                   // groups of 32 columns
#define OUT32 (32 * THIRTIES)
#define CHUNK32 (OUT32 == 96 ? 96 : OUT32 % 64 ? 32 : 64)  // columns of a product with errors
#define AT_ONCE 2                                  // groups of columns that are read together

// A thread's numbers of 32 columns are 8q..8q+7, so that it reads and writes 16 bytes at once: outputs lie in that order. Beyond E: 0.
__device__ __forceinline__ void load_outputs_by_eights(unsigned char* to, const bf* from) {
  for (int i = threadIdx.x; i < T * 4 * THIRTIES; i += 128 * TEAMS) {
    const int r = i / (4 * THIRTIES), c = i % (4 * THIRTIES);
    const uint4 x = 8 * c < E ? *(const uint4*)(from + r * E + 8 * c) : make_uint4(0, 0, 0, 0);
    unsigned char* at_ = to + in_pieces<OUT32>(r, 32 * (c >> 2)) + 4 * (c & 3);
    *(uint32_t*)at_ = x.x; *(uint32_t*)(at_ + 128) = x.y; *(uint32_t*)(at_ + 256) = x.z; *(uint32_t*)(at_ + 384) = x.w;
  }
}

// Eight numbers of a row: received + scale * delta.
__device__ __forceinline__ void blend8(float (&y)[8], const S* delta, uint4 received, float scale) {
  const float2 a = unpack(received.x), b = unpack(received.y), c = unpack(received.z), d = unpack(received.w);
  const float t[8] = {a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y};
  wide8(y, delta);
#pragma unroll
  for (int w = 0; w < 8; w++) y[w] = fmaf(scale, y[w], t[w]);
}

// grid (groups, users), TEAMS warpgroups: each takes 64 rows in turn, a warp 16 of them. meta: vocabulary, rows of a group. numbers:
// learning rate, share of the target token. Rows are multiplied from registers, and UNIT rows divided by their norms afterwards.
extern "C" __global__ void __launch_bounds__(128 * TEAMS, 1) table_step_(
    const bf* outputs, const bf* received, const S* delta, const float* scale_, const int* meta, const float* unit_,
    const float* level_, const float* share_, const int* targets_, const float* numbers,
    IF_BIASED(const float* bias,) IF_COMPARED(const bf* their_outputs, const float* their_level, IF_BIASED(const float* their_bias,))
    S* fresh, float* square IF_BIASED(, float* of_bias)) {
  constexpr int OUTPUTS = T * OUT32 * 2, BATCHES = (THIRTIES + AT_ONCE - 1) / AT_ONCE, PARTS = OUT32 / CHUNK32;
  const int user = blockIdx.y;
  const Thread me;
  const int tid = me.tid, lane = me.lane, g = me.g, q = me.q, team = me.team, warp = me.warp;
  unsigned char* os = raw; unsigned char* os2 = os + OUTPUTS;
  S* ds = (S*)(os2 + COMPARED * OUTPUTS) + (tid >> 5) * 16 * E;  // this warp's 16 rows
  __shared__ __align__(8) float level[T], of_target[T], level2[T];
  __shared__ float red[4 * TEAMS];
  __shared__ __align__(8) int targets[T];
  __shared__ __align__(8) uint64_t bars[4 * TEAMS];
  uint64_t* bar = &bars[tid >> 5];
  const int V = meta[0], rows = meta[1], first = blockIdx.x * rows, last = min(V, first + rows);
  const float scale = scale_[user], unit = unit_[user], eta = numbers[0] / unit, keep = scale / unit, user_share = numbers[1];
  if (scale < 0) return;
  if (lane == 0) { bar_init(bar); bar_ready(); }
  __syncwarp();
  const S* mine = delta + (size_t)user * V * E;
  auto fetch = [&](int v0) {
    if (lane == 0 && v0 < last) {
      const int bytes = min(16, last - v0) * E * (int)sizeof(S);
      bar_expect(bar, bytes);
      bulk_copy(ds, mine + (size_t)v0 * E, bytes, bar);
    }
  };
  fetch(first + ROWS * team + 16 * warp);
  load_outputs_by_eights(os, outputs + (size_t)user * T * E);
  IF_COMPARED(load_outputs_by_eights(os2, their_outputs + (size_t)user * T * E);)
  for (int i = tid; i < T; i += 128 * TEAMS) {
    // What errors are multiplied by is added to the exponent: log2 0 is -inf, and 2^-inf is 0.
    const float share = eta * LN2 * share_[user * T + i];
    level[i] = log2f(share) - level_[user * T + i]; of_target[i] = user_share * share; targets[i] = targets_[user * T + i];
    IF_COMPARED(level2[i] = log2f((1 - user_share) * share) - their_level[user * T + i];)
  }
  fence_async();
  __syncthreads();
  auto column = [&](int group) { return 32 * group + 32 <= E ? 32 * group + 8 * q : min(32 * group + 8 * q, E - 8); };
  // Rows and columns that do not exist are read where the last one is: the one are not written, of the others outputs are 0.
  const bf* from[2];
  uint4 near[2][AT_ONCE][2];
  auto look = [&](int batch) {
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
#pragma unroll
      for (int h = 0; h < 2; h++)
        if (AT_ONCE * batch + i < THIRTIES) near[batch & 1][i][h] = *(const uint4*)(from[h] + column(AT_ONCE * batch + i));
  };
  auto look_at = [&](int v0) {  // the first columns of a thread's two rows
#pragma unroll
    for (int h = 0; h < 2; h++) from[h] = received + (size_t)min(v0 + g + 8 * h, last - 1) * E;
    look(0);
    if (BATCHES > 1) look(1);
  };
  look_at(first + ROWS * team + 16 * warp);
  float squares = 0;
  int turn = 0;
#pragma unroll 1
  for (int v = first + ROWS * team; v < last; v += ROWS * TEAMS, turn ^= 1) {
    const int v0 = v + 16 * warp, next = v0 + ROWS * TEAMS;
    const int row[2] = {v0 + g, v0 + g + 8};
    const bool there[2] = {row[0] < last, row[1] < last};
    const S* at_[2] = {ds + g * E, ds + (g + 8) * E};
    if (lane == 0 && next < last) prefetch(mine + (size_t)next * E, min(16, last - next) * E * (int)sizeof(S));
    if (v0 < last) bar_wait(bar, turn);
    float s[T / 2], sum[2] = {0, 0};
    IF_COMPARED(float theirs[T / 2]; float sum2[2] = {0, 0};)
#pragma unroll
    for (int b = 0; b < BATCHES; b++) {
      uint4 x[AT_ONCE][2];
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++) {
        const int group = AT_ONCE * b + i;
#pragma unroll
        for (int h = 0; h < 2; h++)
          if (group < THIRTIES) {
            const bool counts = 32 * group + 32 <= E || 32 * group + 8 * q < E;
            const uint4 t = near[b & 1][i][h];
            float y[8];
            blend8(y, at_[h] + column(group), t, scale);
            if (UNIT && counts)
#pragma unroll
              for (int w = 0; w < 8; w++) sum[h] = fmaf(y[w], y[w], sum[h]);
            x[i][h] = make_uint4(pack(y[0], y[1]), pack(y[2], y[3]), pack(y[4], y[5]), pack(y[6], y[7]));
#if COMPARED && UNIT
            const float2 a = unpack(t.x), b_ = unpack(t.y), c_ = unpack(t.z), d = unpack(t.w);
            if (counts) sum2[h] += (a.x * a.x + a.y * a.y) + (b_.x * b_.x + b_.y * b_.y) + (c_.x * c_.x + c_.y * c_.y) + (d.x * d.x + d.y * d.y);
#endif
          }
      }
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++) {
        const int group = AT_ONCE * b + i;
        if (group < THIRTIES) {
          auto multiply = [&](float (&to)[T / 2], const uint4 (&of)[2], const unsigned char* with) {
            wgmma_regs<T, 0>(to, {of[0].x, of[1].x, of[0].y, of[1].y}, by_rows<OUT32>(with + 512 * group), group > 0);
            wgmma_regs<T, 0>(to, {of[0].z, of[1].z, of[0].w, of[1].w}, by_rows<OUT32>(with + 512 * group + 256), 1);
          };
          multiply(s, x[i], os);
          IF_COMPARED(multiply(theirs, near[b & 1][i], os2);)
        }
      }
      wgmma_commit();
      IF_COMPARED(wgmma_wait<0>();)  // it reads what was received
      if (b + 2 < BATCHES) look(b + 2);
      if (b > 0 && b + 1 < BATCHES) wgmma_wait<1>();
    }
    float shift[2] = {0, 0}, along[2] = {0, 0}, of_biases[2] = {0, 0}, inverse[2] = {1, 1};
    IF_COMPARED(float shift2[2] = {0, 0}; float inverse2[2] = {1, 1};)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      if (UNIT) inverse[h] = rsqrtf(fmaxf(quad(sum[h]), 1e-24f));
      IF_COMPARED(if (UNIT) inverse2[h] = rsqrtf(fmaxf(quad(sum2[h]), 1e-24f));)
      IF_BIASED(if (there[h]) { shift[h] = bias[(size_t)user * V + row[h]]; IF_COMPARED(shift2[h] = their_bias[row[h]];) })
    }
    wgmma_wait(s);
    IF_COMPARED(pin(theirs);)
    uint32_t errors[T / 4];
#pragma unroll
    for (int j = 0; j < T / 8; j++) {
      const float2 lv = *(const float2*)(level + 8 * j + 2 * q), sh = *(const float2*)(of_target + 8 * j + 2 * q);
      const int2 wanted = *(const int2*)(targets + 8 * j + 2 * q);
      IF_COMPARED(const float2 lv2 = *(const float2*)(level2 + 8 * j + 2 * q);)
      float e[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int h = i >> 1;
        const float logit = UNIT ? s[4 * j + i] * inverse[h] : s[4 * j + i];
        e[i] = ex2(logit + shift[h] + (i & 1 ? lv.y : lv.x));
        if ((i & 1 ? wanted.y : wanted.x) == row[h]) e[i] -= i & 1 ? sh.y : sh.x;
        IF_COMPARED(e[i] -= ex2(theirs[4 * j + i] * inverse2[h] + shift2[h] + (i & 1 ? lv2.y : lv2.x));)
        IF_BIASED(of_biases[h] += e[i];)
        if (UNIT) along[h] = fmaf(e[i], logit, along[h]);  // a row's product with its gradient
      }
      errors[2 * j] = pack(e[0], e[1]); errors[2 * j + 1] = pack(e[2], e[3]);
    }
    float c[CHUNK32 / 2];
#pragma unroll
    for (int m = 0; m < PARTS; m++) {
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < T / 16; k++)
        wgmma_regs<CHUNK32, 1>(c, {errors[4 * k], errors[4 * k + 1], errors[4 * k + 2], errors[4 * k + 3]}, by_columns<OUT32>(os + 2 * k * OUT32 * 16 + m * CHUNK32 * 16), k > 0);
      wgmma_commit();
      Eight<S> old[CHUNK32 / 32][2];
#pragma unroll
      for (int i = 0; i < CHUNK32 / 32; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) take8(old[i][h], at_[h] + column(m * (CHUNK32 / 32) + i));
#if UNIT
      uint4 as_received[CHUNK32 / 32][2];
#pragma unroll
      for (int i = 0; i < CHUNK32 / 32; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) as_received[i][h] = *(const uint4*)(from[h] + column(m * (CHUNK32 / 32) + i));
#endif
      if (m == 0) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
          IF_BIASED(const float x = quad(of_biases[h]) / (eta * LN2); if (q == 0 && there[h]) of_bias[(size_t)user * V + row[h]] = x;)
          if (UNIT) along[h] = inverse[h] * inverse[h] * quad(along[h]);
        }
      }
      wgmma_wait<0>();
      pin(c);
      if (m == PARTS - 1 && !UNIT) look_at(next);
#pragma unroll
      for (int i = 0; i < CHUNK32 / 32; i++) {
        const int group = m * (CHUNK32 / 32) + i;
        const bool inside = 32 * group + 32 <= E || 32 * group + 8 * q < E;
#pragma unroll
        for (int h = 0; h < 2; h++) {
          float x[8];
          wide8(x, old[i][h]);
#if UNIT
          const uint4 t = as_received[i][h];
          const float2 a = unpack(t.x), b = unpack(t.y), d = unpack(t.z), f = unpack(t.w);
          const float ts[8] = {a.x, a.y, b.x, b.y, d.x, d.y, f.x, f.y};
#endif
#pragma unroll
          for (int w = 0; w < 8; w++) {
            const float gradient = c[4 * (4 * i + (w >> 1)) + 2 * h + (w & 1)];
#if UNIT
            const float y = fmaf(scale, x[w], ts[w]);
            x[w] = fmaf(along[h], y, fmaf(keep, x[w], -inverse[h] * gradient));
#else
            x[w] = fmaf(keep, x[w], -gradient);
#endif
          }
          if (there[h] && inside) {
#pragma unroll
            for (int w = 0; w < 8; w++) squares = fmaf(x[w], x[w], squares);
            put8(fresh + ((size_t)user * V + row[h]) * E + 32 * group + 8 * q, x);
          }
        }
      }
    }
    __syncwarp();
    fetch(next);
    if (UNIT) look_at(next);
  }
#pragma unroll
  for (int x = 16; x; x >>= 1) squares += __shfl_xor_sync(~0u, squares, x);
  if (lane == 0) red[tid >> 5] = squares;
  __syncthreads();
  if (tid == 0) {
    float x = 0;
    for (int i = 0; i < 4 * TEAMS; i++) x += red[i];
    square[(size_t)user * gridDim.x + blockIdx.x] = x * (unit * unit);
  }
}
