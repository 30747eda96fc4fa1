"""Fine-tuning: training sequences, objectives and the training job."""
