mod containment;
mod decisions;
