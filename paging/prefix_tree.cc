#include "paging/prefix_tree.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace pagezip {
namespace {

constexpr size_t kPageTokensMax = 64;
constexpr size_t kBucketsMin = 64;

PageHash to_page_hash(const XXH128_hash_t& hash) { return {hash.low64, hash.high64}; }

}  // namespace

PageHash hash_page(const PageHash& parent, std::span<const TokenId> tokens) {
  CHECK_LE(tokens.size(), kPageTokensMax);
  std::byte text[sizeof(PageHash) + kPageTokensMax * sizeof(TokenId)];
  std::memcpy(text, &parent, sizeof(PageHash));
  std::memcpy(text + sizeof(PageHash), tokens.data(), tokens.size_bytes());
  return to_page_hash(XXH3_128bits(text, sizeof(PageHash) + tokens.size_bytes()));
}

PrefixTree::PrefixTree(int page_tokens, Hasher hasher)
    : page_tokens_(static_cast<size_t>(page_tokens)),
      hasher_(hasher),
      buckets_(kBucketsMin, kNone) {
  CHECK_GT(page_tokens, 0);
  CHECK_LE(page_tokens_, kPageTokensMax);
}

PrefixTree::NodeId PrefixTree::root(std::string_view space) const {
  const auto found = spaces_.find(space);
  return found == spaces_.end() ? kNone : found->second;
}

PrefixTree::NodeId PrefixTree::add_root(std::string_view space) {
  const NodeId node = add(kNone, to_page_hash(XXH3_128bits(space.data(), space.size())));
  const auto [place, is_new] = spaces_.emplace(space, node);
  CHECK(is_new);
  names_.emplace(node, place->first);
  return node;
}

PrefixTree::NodeId PrefixTree::child(NodeId node, const TokenId* tokens) const {
  const Node& parent = nodes_[node];
  const auto has_tokens = [&](NodeId candidate) {
    const TokenId* own = tokens_.data() + candidate * page_tokens_;
    return std::memcmp(own, tokens, page_tokens_ * sizeof(TokenId)) == 0;
  };
  if (parent.first_child == kNone) {
    return kNone;
  }
  if (has_tokens(parent.first_child)) {
    return parent.first_child;
  }
  const PageHash hash = hasher_(parent.hash, {tokens, page_tokens_});
  NodeId candidate = buckets_[hash.low & (buckets_.size() - 1)];
  while (candidate != kNone) {
    const Node& other = nodes_[candidate];
    if (other.hash == hash && other.parent == node && other.parent_birth == parent.birth &&
        has_tokens(candidate)) {
      return candidate;
    }
    candidate = other.next_in_bucket;
  }
  return kNone;
}

PrefixTree::NodeId PrefixTree::add_child(NodeId node, const TokenId* tokens) {
  CHECK_EQ(child(node, tokens), kNone);
  const NodeId added = add(node, hasher_(nodes_[node].hash, {tokens, page_tokens_}));
  std::copy_n(tokens, page_tokens_, tokens_.begin() + static_cast<int64_t>(added * page_tokens_));
  link_sibling(added);
  grow_buckets();
  NodeId& first = bucket(nodes_[added].hash);
  nodes_[added].next_in_bucket = first;
  first = added;
  return added;
}

PrefixTree::NodeId PrefixTree::add(NodeId parent, const PageHash& hash) {
  NodeId node = ids_end();
  if (unused_.empty()) {
    CHECK_LT(node, kNone);
    nodes_.emplace_back();
    tokens_.resize(tokens_.size() + page_tokens_);
  } else {
    node = unused_.back();
    unused_.pop_back();
  }
  Node& added = nodes_[node];
  added.hash = hash;
  added.birth = ++births_;
  added.parent = parent;
  added.root = node;
  if (parent != kNone) {
    added.parent_birth = nodes_[parent].birth;
    added.pages = nodes_[parent].pages + 1;
    added.root = nodes_[parent].root;
  }
  return node;
}

void PrefixTree::make_recent(NodeId node) {
  if (nodes_[nodes_[node].parent].first_child != node) {
    unlink_sibling(node);
    link_sibling(node);
  }
}

void PrefixTree::link_sibling(NodeId node) {
  NodeId& first = nodes_[nodes_[node].parent].first_child;
  nodes_[node].previous_sibling = kNone;
  nodes_[node].next_sibling = first;
  if (first != kNone) {
    nodes_[first].previous_sibling = node;
  }
  first = node;
}

void PrefixTree::unlink_sibling(NodeId node) {
  const Node& gone = nodes_[node];
  if (gone.next_sibling != kNone) {
    nodes_[gone.next_sibling].previous_sibling = gone.previous_sibling;
  }
  if (gone.previous_sibling != kNone) {
    nodes_[gone.previous_sibling].next_sibling = gone.next_sibling;
  } else {
    nodes_[gone.parent].first_child = gone.next_sibling;
  }
}

void PrefixTree::remove(NodeId node) {
  CHECK(is_leaf(node));
  if (is_root(node)) {
    const auto name = names_.find(node);
    CHECK(name != names_.end());
    spaces_.erase(spaces_.find(name->second));
    names_.erase(name);
  } else {
    unlink_sibling(node);
    NodeId* place = &bucket(nodes_[node].hash);
    while (*place != node) {
      CHECK_NE(*place, kNone);
      place = &nodes_[*place].next_in_bucket;
    }
    *place = nodes_[node].next_in_bucket;
  }
  nodes_[node] = Node();
  unused_.push_back(node);
}

void PrefixTree::clear() {
  nodes_.clear();
  tokens_.clear();
  unused_.clear();
  buckets_.assign(kBucketsMin, kNone);
  names_.clear();
  spaces_.clear();
}

void PrefixTree::grow_buckets() {
  if (nodes_.size() <= buckets_.size()) {
    return;
  }
  std::vector<NodeId> old(buckets_.size() * 2, kNone);
  old.swap(buckets_);
  for (NodeId node : old) {
    while (node != kNone) {
      NodeId& first = bucket(nodes_[node].hash);
      const NodeId next = nodes_[node].next_in_bucket;
      nodes_[node].next_in_bucket = first;
      first = node;
      node = next;
    }
  }
}

bool PrefixTree::has_one_child(NodeId node) const {
  const NodeId first = nodes_[node].first_child;
  return first != kNone && nodes_[first].next_sibling == kNone;
}

PrefixTree::NodeId PrefixTree::leaf_below(NodeId node) const {
  while (!is_leaf(node)) {
    node = nodes_[node].first_child;
  }
  return node;
}

std::span<const TokenId> PrefixTree::tokens_of(NodeId node) const {
  return std::span(tokens_).subspan(node * page_tokens_, page_tokens_);
}

std::string PrefixTree::audit() const {
  int64_t live = 0;
  int64_t children = 0;
  for (NodeId node = 0; node < ids_end(); ++node) {
    if (birth(node) == 0) {
      continue;
    }
    ++live;
    NodeId previous = kNone;
    for (NodeId child = nodes_[node].first_child; child != kNone;
         child = nodes_[child].next_sibling) {
      if (nodes_[child].parent != node || nodes_[child].previous_sibling != previous) {
        return "node " + std::to_string(node) + " has a wrong list of children";
      }
      previous = child;
      if (++children >= size()) {
        return "node " + std::to_string(node) + " has too many children";
      }
    }
    std::string violation = audit_node(node);
    if (!violation.empty()) {
      return "node " + std::to_string(node) + violation;
    }
  }
  if (live != size() || live - children != spaces() || names_.size() != spaces_.size()) {
    return std::to_string(live) + " live nodes of " + std::to_string(size()) + ", " +
           std::to_string(children) + " of them children, and " + std::to_string(spaces()) +
           " spaces";
  }
  return "";
}

std::string PrefixTree::audit_node(NodeId node) const {
  const Node& own = nodes_[node];
  if (is_root(node)) {
    const auto name = names_.find(node);
    const bool is_known = name != names_.end() && root(name->second) == node;
    return is_known && own.parent == kNone && own.root == node ? "" : " is no proper root";
  }
  if (!is_alive(own.parent, own.parent_birth)) {
    return " has outlived its parent";
  }
  const Node& parent = nodes_[own.parent];
  if (own.pages != parent.pages + 1 || own.root != parent.root || own.birth <= parent.birth) {
    return " doesn't fit to its parent";
  }
  if (own.hash != hasher_(parent.hash, tokens_of(node))) {
    return " has a wrong hash";
  }
  NodeId other = buckets_[own.hash.low & (buckets_.size() - 1)];
  while (other != node && other != kNone) {
    const Node& before = nodes_[other];
    if (before.hash == own.hash && before.parent == own.parent &&
        std::ranges::equal(tokens_of(other), tokens_of(node))) {
      return " is there twice";
    }
    other = before.next_in_bucket;
  }
  return other == node ? "" : " can't be found";
}

}  // namespace pagezip
