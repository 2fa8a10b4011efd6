// The two launches of table.cu, block after block. OTHERS, MORE_STEP and MORE_SCORES are what a kernel takes beside the rest.
int main() {
  const int *sizes = read_array<int>("sizes"), *targets = read_array<int>("targets");
  const int V = sizes[0], users = sizes[3], parts = (V + sizes[1] - 1) / sizes[1], groups = (V + sizes[2] - 1) / sizes[2];
  const int first[2] = {V, sizes[1]}, second[2] = {V, sizes[2]};
  const bf *outputs = read_array<bf>("outputs"), *received = read_array<bf>("received");
  S* delta = read_array<S>("delta");
  const float *scale = read_array<float>("scale"), *unit = read_array<float>("unit"), *level = read_array<float>("level");
  const float *share = read_array<float>("share"), *numbers = read_array<float>("numbers");
#if BIASED
  const float* bias = read_array<float>("bias");
  std::vector<float> of_bias((size_t)users * V);
#endif
#if COMPARED
  const bf* their_outputs = read_array<bf>("their_outputs");
  const float* their_level = read_array<float>("their_level");
#if BIASED
  const float* their_bias = read_array<float>("their_bias");
#endif
#endif
  const size_t tokens = (size_t)users * parts * T;
  std::vector<float> most(tokens), total(tokens), mean(tokens * E), other(tokens * E), squares(users * groups);
  for (int pass = 0; pass < 2; pass++) {
    gridDim = {pass ? groups : parts, users, 1};
    for (int user = 0; user < users; user++)
      for (int part = 0; part < gridDim.x; part++) {
        blockIdx = {part, user, 0};
        if (pass) kernel = [&] { table_step_(outputs, received, delta, scale, second, unit, level, share, targets, numbers, OTHERS delta, squares.data() MORE_STEP); };
        else kernel = [&] { table_scores_(outputs, received, delta, scale, first, OTHERS most.data(), total.data(), mean.data() MORE_SCORES); };
        run_block();
      }
  }
  write_array("most", most.data(), most.size()); write_array("total", total.data(), total.size());
  write_array("mean", mean.data(), mean.size()); write_array("other", other.data(), other.size());
  write_array("new", delta, (size_t)users * V * E); write_array("squares", squares.data(), squares.size());
#if BIASED
  write_array("of_bias", of_bias.data(), of_bias.size());
#endif
}
